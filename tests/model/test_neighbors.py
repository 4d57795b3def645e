"""Modules beside a model's file: found while it is loaded, and forgotten after."""

import importlib
import sys
from pathlib import Path

import pytest

from minitrain.model.neighbors import neighbors_of


def folder(parent: Path, name: str, value: int) -> Path:
    """A model's file with a neighbor ``layers_of_mine`` that holds ``value``."""
    made = parent / name
    made.mkdir()
    (made / "layers_of_mine.py").write_text(f"VALUE = {value}\n")
    return made / "model.py"


def value_beside(file: Path) -> int:
    with neighbors_of(file):
        value: int = importlib.import_module("layers_of_mine").VALUE
    return value


def test_each_file_has_its_own_neighbors(tmp_path: Path) -> None:
    """Two of one name are not taken for each other."""
    first, second = folder(tmp_path, "first", 1), folder(tmp_path, "second", 2)
    assert [value_beside(file) for file in (first, second, first)] == [1, 2, 1]


def test_nothing_of_it_stays(tmp_path: Path) -> None:
    path, finders = [*sys.path], [*sys.meta_path]
    with pytest.raises(ModuleNotFoundError), neighbors_of(tmp_path / "model.py"):
        importlib.import_module("nowhere_at_all")
    assert (sys.path, sys.meta_path) == (path, finders)
