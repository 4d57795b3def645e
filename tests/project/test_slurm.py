"""The batch scripts of launch/slurm, submitted to a Slurm of two virtual nodes.

All jobs run before the first test looks at what became of them. What the scripts
refuse: test_slurm_run.py.
"""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from forks import TRAIN_2, run_stages
from project import copy_project, run_dvc
from slurm import missing, two_nodes
from waiting import wait_for

from minitrain.core.files import read_json

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(missing()), reason=f"needs slurm-wlm and munge: no {', '.join(missing())}"
    ),
]
# so many steps that a job is stopped long before the last one
PARAMS = {"train.num_steps": 300, "train.hash_every": 300, "checkpoint.every_steps": 25}
ONE, MANY = "launch/slurm/one-node.sbatch", "launch/slurm/many-nodes.sbatch"
RUN, CHECKPOINTS = "data/runs/gloo-2", ".minitrain/checkpoints"


def states(project: Path) -> dict[str, bytes]:
    folder = project / RUN / "states"
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def went_on_from(project: Path) -> int:
    return int(read_json(project / RUN / "provenance.json")["went_on_from_step"])


class Trials(NamedTuple):
    """Projects of both jobs, what the first printed, and the states of the same run
    without Slurm.
    """

    one: Path
    two: Path
    said: str
    wanted: dict[str, bytes]
    strays: list[str]
    files: list[str]


def copy_without_runs(project: Path, name: str) -> Path:
    return shutil.copytree(
        project,
        project.with_name(name),
        symlinks=True,
        ignore=shutil.ignore_patterns("runs", ".minitrain"),
    )


@pytest.fixture(scope="module")
def trials(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """All jobs, one after the other; Slurm is gone when the first test begins."""
    project = copy_project(tmp_path_factory.mktemp("projects") / "project", PARAMS)
    (project / ".venv").symlink_to(sys.prefix)
    folder = tmp_path_factory.mktemp("slurm")
    with two_nodes(folder) as slurm:
        # it gets the signal for the end of its time during training; it also makes the
        # shards for the other
        job = slurm.submit(project, ONE, "train@2")
        written = f"{CHECKPOINTS}/gloo-2-*/step-*/manifest.json"
        wait_for(lambda: [*project.glob(written)], 1)
        job.end_of_time()
        job.wait()
        two = copy_without_runs(project, "two")
        slurm.submit(two, MANY, "2").wait()
        strays = slurm.strays()
    files = [file.name for file in (folder / "tmp").iterdir()]
    alone = copy_without_runs(project, "alone")
    ended = run_stages(stages_by_fork, alone, [TRAIN_2])
    assert ended.code == 0, ended.output
    return Trials(project, two, job.said, states(alone), strays, files)


def test_jobs_end_in_the_bytes_of_torchrun_on_one_host(trials: Trials) -> None:
    assert len(trials.wanted) == 2
    for project in (trials.one, trials.two):
        assert states(project) == trials.wanted
        # and not, alone, what it began with
        assert (project / RUN / "losses.csv").stat().st_size > 0
        assert not (project / CHECKPOINTS).exists()
    assert went_on_from(trials.two) == 0


def test_job_whose_time_is_nearly_up_goes_on_after_a_requeue(trials: Trials) -> None:
    step = went_on_from(trials.one)
    assert step > 0
    lines = trials.said.splitlines()
    assert "time is nearly up: requeued, to go on from here" in lines
    # the same file holds both starts
    assert f"gloo-2: going on from step {step} of 300" in lines


def test_dvc_takes_over_what_a_job_made(trials: Trials) -> None:
    """As in launch/slurm/README.md; DVC then does not rerun the stage."""
    project = trials.two
    _, said = run_dvc(project, "repro", "--dry", "train@2")
    assert "Running stage 'train@2'" in said
    code, said = run_dvc(project, "commit", "--force", "train@2")
    assert code == 0, said
    before = states(project)
    code, said = run_dvc(project, "repro", "train@2")
    assert code == 0, said
    assert "Running stage 'train@2'" not in said
    assert states(project) == before


def test_jobs_leave_no_process_and_no_file_of_the_ranks(trials: Trials) -> None:
    assert trials.strays == []
    # torch makes its compiler's cache as soon as a model is wrapped
    assert [name for name in trials.files if "torchinductor_" not in name] == []
