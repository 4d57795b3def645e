"""The scripts of launch/slurm without a Slurm: what they refuse, and what becomes of a
job whose time is nearly up.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from project import ROOT, run_in, write_script
from waiting import GENEROUS_S, wait_for

UNTIL_TOLD = ["sh", "-c", "touch begun; until [ -e go ]; do sleep 0.05; done; exit 3"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a Python that does nothing, and a scontrol that logs."""
    write_script(tmp_path / "stages/python", "")
    write_script(tmp_path / "bin/scontrol", 'echo "$@" > asked')
    shutil.copytree(ROOT / "launch/slurm", tmp_path / "launch/slurm")
    return tmp_path


def checkpoint(project: Path, step: int) -> None:
    (project / f".minitrain/checkpoints/gloo-2-abc/step-{step}").mkdir(parents=True)


@pytest.mark.parametrize("made", ["checkpoint", "stage", "nothing"])
def test_job_is_requeued_if_it_has_done_something(project: Path, made: str) -> None:
    """Else it would begin anew for ever; it may still finish in the remaining time."""
    checkpoint(project, 25)
    (project / "dvc.lock").write_text("shard: 1\n")
    path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
    job = subprocess.Popen(
        ["launch/slurm/run", *UNTIL_TOLD],
        cwd=project,
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "7"},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: [*project.glob("begun")], 1)
    if made == "checkpoint":
        checkpoint(project, 50)
    elif made == "stage":
        (project / "dvc.lock").write_text("shard: 1\ntrain@2: 1\n")
    job.send_signal(signal.SIGUSR1)
    assert job.stderr
    said = job.stderr.readline()
    (project / "go").touch()
    assert job.communicate(timeout=GENEROUS_S)[1] == ""
    # that of the command
    assert job.returncode == 3
    if made == "nothing":
        assert said.startswith("not requeued: no stage or checkpoint is new since ")
        assert not (project / "asked").exists()
    else:
        # Slurm would end it
        assert said == "time is nearly up: requeued, to go on from here\n"
        assert (project / "asked").read_text() == "requeue 7\n"


ONE, MANY = "launch/slurm/one-node.sbatch", "launch/slurm/many-nodes.sbatch"
SHARDS = "data/shards/world-4: missing; `dvc repro shard` makes it, with 4 in "


def test_job_that_asks_for_too_little_is_one_line(project: Path) -> None:
    for ranks, nodes, cpus, line in (
        ("", "2", "1", "W = '': must be a number of ranks, after the script"),
        ("2", "1", "1", "--nodes = 1: must be more; for one there is one-node.sbatch"),
        ("3", "2", "1", "W = 3: must be a multiple of --nodes = 2"),
        ("4", "2", "1", "--cpus-per-task = 1: must be at least 2, a CPU for each rank"),
        ("4", "2", "2", f"{SHARDS}gloo.world_sizes"),
    ):
        given = {"SLURM_JOB_NUM_NODES": nodes, "SLURM_CPUS_PER_TASK": cpus}
        done = run_in(project, "bash", MANY, *ranks.split(), **given)
        assert (done.returncode, done.stderr) == (2, f"error: {line}\n")


def test_job_outside_the_project_or_without_torch_is_one_line(project: Path) -> None:
    outside = project / "bin"
    line = f"error: {outside}: not the project; call sbatch in the project's root\n"
    for script in (ONE, MANY):
        done = run_in(outside, "bash", project / script, "2")
        assert (done.returncode, done.stderr) == (2, line)
    write_script(project / "stages/python", "exit 1")
    done = run_in(project, "bash", ONE)
    line = f"{project}: no torch in .venv or python3; `make .venv/installed`"
    assert (done.returncode, done.stderr) == (2, f"error: {line}\n")
