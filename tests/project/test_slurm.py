"""The batch scripts of launch/slurm, submitted to a Slurm of two virtual nodes.

All jobs run before the first test looks at what became of them. What the scripts
refuse: test_slurm_run.py.
"""

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forks import TRAIN_2, run_stages
from project import copy_project, run_dvc
from slurm import Slurm, missing, two_nodes
from waiting import wait_for

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
RUNS, CHECKPOINTS = "data/runs", ".minitrain/checkpoints"
OK = ("COMPLETED", 0)


@dataclass(frozen=True)
class Outcome:
    end: tuple[str, int]
    said: str
    project: Path

    @property
    def went_on_from(self) -> int:
        file = self.project / RUNS / "gloo-2/provenance.json"
        return int(json.loads(file.read_text())["went_on_from_step"])


def states(project: Path) -> dict[str, bytes]:
    folder = project / RUNS / "gloo-2/states"
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def on_one_node(slurm: Slurm, project: Path) -> Outcome:
    """Gets the signal for the end of its time during training."""
    job = slurm.submit(project, ONE, "train@2")
    written = f"{CHECKPOINTS}/gloo-2-*/step-*/manifest.json"
    wait_for(lambda: [*project.glob(written)], 1)
    job.signal("USR1", "--batch", job.number)
    job.wait_for({"PENDING"})
    job.start_soon()
    return Outcome(job.wait(), job.said, project)


def on_two_nodes(slurm: Slurm, project: Path) -> Outcome:
    """Undisturbed."""
    job = slurm.submit(project, MANY, "2")
    return Outcome(job.wait(), job.said, project)


@dataclass
class Trials:
    """Outcomes of all jobs, and the states of the same run without Slurm."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    wanted: dict[str, bytes] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


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
    done = Trials()
    project = copy_project(tmp_path_factory.mktemp("projects") / "project", PARAMS)
    (project / ".venv").symlink_to(sys.prefix)
    folder = tmp_path_factory.mktemp("slurm")
    with two_nodes(folder) as slurm:
        # it also makes the shards for the other
        done.outcomes["on_one_node"] = on_one_node(slurm, project)
        two = copy_without_runs(project, "two")
        done.outcomes["on_two_nodes"] = on_two_nodes(slurm, two)
        done.strays = slurm.strays()
    done.files = [file.name for file in (folder / "tmp").iterdir()]
    alone = copy_without_runs(project, "alone")
    ended = run_stages(stages_by_fork, alone, [TRAIN_2])
    assert ended.code == 0, ended.output
    done.wanted = states(alone)
    return done


@pytest.mark.parametrize("name", ["on_one_node", "on_two_nodes"])
def test_job_ends_in_the_bytes_of_torchrun_on_one_host(
    trials: Trials, name: str
) -> None:
    outcome = trials.outcomes[name]
    assert outcome.end == OK, outcome.said
    assert len(trials.wanted) == 2
    assert states(outcome.project) == trials.wanted
    # and not, alone, what it began with
    assert (outcome.project / RUNS / "gloo-2/losses.csv").stat().st_size > 0
    assert not (outcome.project / CHECKPOINTS).exists()
    assert trials.outcomes["on_two_nodes"].went_on_from == 0


def test_job_whose_time_is_nearly_up_goes_on_after_a_requeue(trials: Trials) -> None:
    outcome = trials.outcomes["on_one_node"]
    assert outcome.went_on_from > 0
    lines = outcome.said.splitlines()
    assert "time is nearly up: requeued, to go on from here" in lines
    # the same file holds both starts
    going_on = f"gloo-2: going on from step {outcome.went_on_from} of 300"
    assert going_on in lines


def test_dvc_takes_over_what_a_job_made(trials: Trials) -> None:
    """As in launch/slurm/README.md; DVC then does not rerun the stage."""
    project = trials.outcomes["on_two_nodes"].project
    code, said = run_dvc(project, "repro", "--dry", "train@2")
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
