"""Import of a user's functions and data by ``FILE.py:NAME`` or ``module:NAME``."""

import importlib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.nearest import nearest_file
from minitrain.core.params import Model
from minitrain.core.regular import MOST_OF_INDEX, require_regular
from minitrain.core.schema import Section, load, validated
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.factory import execute, neighbors_of

# as in a fresh params.yaml
SIZES = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}


class _OfModel(Section, extra="ignore"):
    model: Model


@dataclass(frozen=True)
class OfFile:
    """Function of a file that may import from the file's folder; pickled by name."""

    path: Path
    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        with neighbors_of(self.path):
            return self.__wrapped__(*arguments, **named)

    @property
    def __wrapped__(self) -> Any:
        # inspect.signature() follows this attribute
        return getattr(_load(self.path), self.name)


def find_factory(written: str, arguments: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return the factory that ``written`` names, as a function without arguments, and
    the largest number of tokens in a sample of its model, or None if unknown.

    A factory of the pipeline, ``build(model, vocab_size)``, receives the section
    ``model`` of params.yaml in the working folder (:data:`SIZES` without a valid one),
    updated by ``arguments``. Any other function receives ``arguments`` by name.
    """
    found = find(written, "MODEL")
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
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # no function, or one without a known signature
        return False
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind in by_place]
    return [p.name for p in needed[1:]] == ["vocab_size"]


def find(written: str, option: str) -> Any:
    """Import and return what ``written`` names. Raises a UserError that starts with
    ``option``.
    """
    place, _, name = written.rpartition(":")
    start = f"{option} = {written!r}:"
    if not (place and name):
        raise UserError(f"{start} must be FILE.py:NAME or module:NAME")
    path = Path(place).absolute()
    try:
        if path.suffix != ".py":
            found = importlib.import_module(place)
        else:
            with neighbors_of(path):
                found = _load(path)
    except FileNotFoundError:
        near = nearest_file(Path(place))
        raise UserError(f"{start} no file {place}{near}") from None
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{start} {place}: {why}") from error
    if not hasattr(found, name):
        public = [one for one in vars(found) if not one.startswith("_")]
        raise UserError(f"{start} {place} has no {name}{did_you_mean(name, public)}")
    named = getattr(found, name)
    return OfFile(path, name) if path.suffix == ".py" and callable(named) else named


@cache
def _load(path: Path) -> ModuleType:
    # read first, for the operating system's error if it cannot be opened
    require_regular(path, MOST_OF_INDEX).read_bytes()
    return execute(path)
