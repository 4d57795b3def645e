"""Functions and data of a user's own files, by ``FILE.py:NAME`` or ``module:NAME``."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.files import MOST_OF_INDEX, nearest_file, require_regular
from minitrain.core.params import Model
from minitrain.core.schema import Section, load, validated
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.factory import neighbors_of

# as in a fresh params.yaml
SIZES = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}


class _OfModel(Section, extra="ignore"):
    model: Model


@dataclass(frozen=True)
class OfFile:
    """A function of a file, with the imports of its folder; pickled by its name."""

    path: Path
    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        with neighbors_of(self.path):
            return self.__wrapped__(*arguments, **named)

    @property
    def __wrapped__(self) -> Any:
        # whose signature this has
        return getattr(_load(self.path), self.name)


def find_factory(written: str, arguments: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return what ``written`` names as a function without arguments, and how many
    tokens a sample of its model may have, if that is known.

    A ``build(model, vocab_size)`` of the pipeline is given the section ``model`` of
    params.yaml here, if it has a valid one, else :data:`SIZES`, with ``arguments`` in
    their place; any other function ``arguments`` by name.
    """
    found = find(written, "MODEL")
    if not _is_of_the_pipeline(found):
        return (partial(found, **arguments) if arguments else found), None
    place, _, name = written.rpartition(":")
    sizes: dict[str, Any] = SIZES
    # it may be another project's, or the extra `lab`, which reads it, not installed
    with suppress(UserError, ModuleNotFoundError):
        sizes = load(Path("params.yaml"), _OfModel).model.model_dump()
    own = {"file": place, "deps": place, "factory": name}
    section = validated({**sizes, **own, **arguments}, Model, "--arg ")
    return partial(found, section, VOCAB_SIZE), section.block_size


def _is_of_the_pipeline(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # no function, or one that does not tell
        return False
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind in by_place]
    return [p.name for p in needed[1:]] == ["vocab_size"]


def find(written: str, option: str) -> Any:
    """Return what ``written`` names; a UserError begins with ``option``."""
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
    # read first: what cannot be opened is the operating system's error
    require_regular(path, MOST_OF_INDEX).read_bytes()
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name while it is being executed
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
