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


class _Beside(MetaPathFinder):
    # a folder on sys.path would outlive its model

    def __init__(self, folder: Path) -> None:
        # with its own list of the folder: those that Python keeps may be old
        self._files = FileFinder(str(folder), (SourceFileLoader, SOURCE_SUFFIXES))

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # what lies in a package, the package finds
        spec = self._files.find_spec(name) if path is None else None
        # a mere folder must not hide a package of its name that is installed
        return spec if spec is not None and spec.loader is not None else None


@contextmanager
def neighbors_of(file: Path) -> Iterator[None]:
    """What lies beside ``file`` can be imported in the body, and comes first. Each
    module is loaded once in a process, as all modules are.
    """
    finder = _Beside(file.resolve().parent)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
