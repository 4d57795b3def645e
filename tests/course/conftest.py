"""One small project, built once: every exercise and every page begins there."""

import shutil
from pathlib import Path

import pytest
from forks import stages_in_forks
from project import IDLE, copy_project, run_dvc

# two processes, unless an exercise asks for more
SMALL = {"gloo.world_sizes": [2]}


@pytest.fixture(scope="session")
def base(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_project(tmp_path_factory.mktemp("course") / "base", SMALL)
    stages_in_forks(folder, stages_by_fork)
    code, output = run_dvc(folder, "repro")
    assert code == 0, output
    return folder


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    ignore = shutil.ignore_patterns(*IDLE)
    return shutil.copytree(base, tmp_path / "copy", symlinks=True, ignore=ignore)
