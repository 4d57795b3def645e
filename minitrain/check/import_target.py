"""Functions and data of a user's own files, by ``FILE.py:NAME`` or ``module:NAME``."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.nearest import nearest_file
from minitrain.core.regular import MOST_OF_INDEX, require_regular
from minitrain.model.factory import neighbors_of


@dataclass(frozen=True)
class OfFile:
    """A function of a file, with the imports of its folder; pickled by its name."""

    path: Path
    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        with neighbors_of(self.path):
            return getattr(_load(self.path), self.name)(*arguments)


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
