"""Modules beside the file of a model: imported as those beside a script that is run."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType


class _Neighbor(SourceFileLoader):
    """Of a module that one model's file found; another's must not be taken for it."""


class _Beside(MetaPathFinder):
    """Finds modules in one folder. A folder on sys.path would outlive its model."""

    def __init__(self, folder: Path) -> None:
        # with its own list of the folder: those that Python keeps may be old
        self._files = FileFinder(str(folder), (_Neighbor, SOURCE_SUFFIXES))

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        # what lies in a package, the package finds
        spec = self._files.find_spec(fullname) if path is None else None
        # a mere folder must not hide a package of its name that is installed
        return spec if spec is not None and spec.loader is not None else None


@contextmanager
def neighbors_of(file: Path) -> Iterator[None]:
    """What lies beside ``file`` can be imported in the body, and comes first.

    Modules that were found so beside another file are forgotten.
    """
    finder = _Beside(file.resolve().parent)
    _forget_strangers(finder)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _forget_strangers(finder: _Beside) -> None:
    strangers = set()
    for name, module in sys.modules.items():
        loader = getattr(module, "__loader__", None)
        if isinstance(loader, _Neighbor):
            spec = finder.find_spec(name, None)
            if spec is None or spec.origin != loader.path:
                strangers.add(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in strangers]:
        del sys.modules[name]
