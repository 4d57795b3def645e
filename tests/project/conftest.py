"""A run of the pipeline that several tests spoil copies of."""

from pathlib import Path

import pytest
from project import make_run


@pytest.fixture(scope="session")
def made_run(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose runs of one and two processes were found equal."""
    folder = tmp_path_factory.mktemp("project") / "run"
    make_run(stages_by_fork, folder)
    return folder
