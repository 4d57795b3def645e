"""A run of the pipeline that several tests spoil copies of."""

import os
import shutil
from pathlib import Path

import pytest
from forks import PIPELINE, run_stages
from project import IDLE, MADE, copy_project


@pytest.fixture(scope="session")
def made_run(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose runs of one and two processes were found equal."""
    few = {"corpus.num_sentences": 40, "train.num_steps": 6}
    folder = copy_project(tmp_path_factory.mktemp("project") / "run", few, IDLE)
    if MADE in os.environ:
        # a mutant gets the outputs of the healthy project
        for name in ("data", "metrics"):
            made = Path(os.environ[MADE], name)
            shutil.copytree(made, folder / name, dirs_exist_ok=True)
        return folder
    outcome = run_stages(stages_by_fork, folder, [*PIPELINE, ["timing"]])
    assert outcome.code == 0, outcome.output
    return folder
