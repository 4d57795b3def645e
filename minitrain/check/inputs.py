"""Inputs of ``minitrain check``: a user's functions and data, and batches of text."""

import importlib
import inspect
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import pad_sequence

from minitrain.check.arguments import described
from minitrain.check.trial import alone
from minitrain.core import files
from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.params import Model
from minitrain.core.schema import Section, load, validated
from minitrain.data.batches import IGNORE_INDEX
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.factory import execute, make_model, neighbors_of
from minitrain.train.rng import seed_everything

# default sizes of a model, as in a fresh params.yaml
SIZES = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}
# limits of the length of a line, in bytes
LONGEST, SHORTEST = 64, 8
# largest product of parameters and tokens of a batch: a fraction of a second
AFFORDED = 1 << 31
# number of different lengths of lines that are cut: with equal lengths a mean of means
# is the mean, so that bug would not show
UNEVEN = 4
STEPS = 3
# a model with more parameters takes two steps by default, the fewest with a step that
# starts from moments of the optimizer
LARGE, STEPS_OF_LARGE = 1 << 24, 2


class _OfModel(Section, extra="ignore"):
    model: Model


@dataclass(frozen=True)
class OfFile:
    """Function ``name`` of the Python file ``path``. It can be pickled: each process
    imports the file at its first call. The file may import modules from its folder.
    """

    path: Path
    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with neighbors_of(self.path):
            return self.__wrapped__(*arguments, **named)

    @property
    def __wrapped__(self) -> Any:
        # inspect.signature() follows this attribute
        return getattr(_load(self.path), self.name)


def find_factory(written: str, arguments: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return the factory that ``written`` (``FILE.py:NAME``, ``module:NAME``) names, as
    a function without arguments, and the largest number of tokens in a sample of its
    model, or None if unknown. Raises UserError if it is not found.

    A factory of the pipeline, ``build(model, vocab_size)``, receives the section
    ``model`` of params.yaml in the working folder (:data:`SIZES` without a valid one),
    updated by ``arguments``. Any other function receives ``arguments`` by name.
    """
    found = find(written, "MODEL")
    if arguments and not callable(found):
        raise UserError(f"MODEL = {written!r}: must be a function if it gets --arg")
    if not _is_of_the_pipeline(found):
        return (partial(found, **arguments) if arguments else found), None
    place, _, name = written.rpartition(":")
    sizes: dict[str, Any] = SIZES
    # it may belong to another project; reading it needs the extra `lab`
    with suppress(UserError, ModuleNotFoundError):
        sizes = load(Path("params.yaml"), _OfModel).model.model_dump()
    own = {"file": place, "deps": place, "factory": name}
    section = validated({**sizes, **own, **arguments}, Model, "--arg ")
    return partial(found, section, VOCAB_SIZE), section.block_size


def _is_of_the_pipeline(function: Any) -> bool:
    try:
        _, second, *more = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # no function of two parameters, or one without a known signature
        return False
    needed = [one for one in more if one.default is one.empty]
    return second.name == "vocab_size" and second.default is second.empty and not needed


def find(written: str, option: str) -> Any:
    """Import and return the object that ``written`` (``FILE.py:NAME``, ``module:NAME``)
    names. If this fails, raises a UserError whose line starts with ``option``.
    """
    place, _, name = written.rpartition(":")
    start = f"{option} = {written!r}:"
    if not (place and name):
        raise UserError(f"{start} must be FILE.py:NAME or module:NAME")
    path = Path(place).absolute()
    of_file = path.suffix == ".py"
    if of_file and not path.exists():
        raise UserError(f"{start} no file {place}{files.nearest_file(Path(place))}")
    try:
        with neighbors_of(path) if of_file else nullcontext():
            found = _load(path) if of_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise UserError(f"{start} {place}: {described(error)}") from error
    if not hasattr(found, name):
        public = [one for one in vars(found) if not one.startswith("_")]
        raise UserError(f"{start} {place} has no {name}{did_you_mean(name, public)}")
    named = getattr(found, name)
    return OfFile(path, name) if of_file and callable(named) else named


@cache
def _load(path: Path) -> ModuleType:
    # read first, for the operating system's error if it cannot be opened
    files.require_regular(path).read_bytes()
    module = execute(path)
    # a rank cannot import it by this name, but gets batches of a type that it defines
    cloudpickle.register_pickle_by_value(module)
    return module


def reading_for(factory: Any, size: int, steps: int | None) -> tuple[int, int, str]:
    """Return the number of steps, the longest line in bytes (both less for a large
    model), and a clause on what was reduced, "" if nothing was. A batch has ``size``
    lines; ``steps`` is None for the default.
    """
    with alone():
        seed_everything(0)
        model = make_model(factory, "factory")
    # the check itself refuses parameters without a shape
    parameters = sum(p.numel() for p in model.parameters() if not is_lazy(p))
    longest, less = LONGEST, []
    # the cost of a step is the product of the three
    while longest > SHORTEST and parameters * size * longest > AFFORDED:
        longest //= 2
    if longest < LONGEST:
        less.append(f"{size} lines of at most {longest} bytes")
    if steps is None and parameters > LARGE:
        less.append(f"{STEPS_OF_LARGE} steps")
    usual = STEPS_OF_LARGE if parameters > LARGE else STEPS
    millions = f": {parameters / 1e6:.0f} million parameters"
    steps = usual if steps is None else steps
    return steps, longest, ", ".join(less) + millions if less else ""


def text_batches(
    file: Path, size: int, count: int, longest: int = LONGEST
) -> list[dict[str, Tensor]]:
    """Return ``count`` batches of ``size`` lines of ``file``, which is repeated if it
    has fewer lines.

    Each batch has ``input_ids`` and ``labels`` (B, T): the bytes of its lines, padded;
    padded labels are -100. Lines are cut to at most ``longest`` bytes, or up to three
    fewer. Lines of fewer than two bytes are skipped; UserError if no others are there.
    """
    text = files.require_regular(file).read_bytes()
    lines = [line for line in text.splitlines() if len(line) > 1]
    if not lines:
        raise UserError(f"{file}: has no line of two bytes")
    numbers = range(size * count)
    dealt = [
        torch.tensor(list(lines[n % len(lines)][: longest - n % UNEVEN]))
        for n in numbers
    ]
    batches = [dealt[start : start + size] for start in numbers[::size]]
    padded = partial(pad_sequence, batch_first=True)
    return [
        {"input_ids": padded(ids), "labels": padded(ids, padding_value=IGNORE_INDEX)}
        for ids in batches
    ]
