"""The train stage loses a rank: it says which, and starts the ranks again by itself."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mutated import PREPARE, run_stages
from project import copy_project, environment, set_params
from waiting import GENEROUS_S

from minitrain.comm import heartbeat as place

pytestmark = pytest.mark.pipeline
TRAIN = ["train", "--backend", "gloo", "--world-size", "2"]
LINE = r"rank 1 \(process (\d+) on \S+\): killed by SIGKILL at step \d+, \w+"


@pytest.fixture(scope="module")
def project(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    steps = {"train.num_steps": 100, "train.hash_every": 100}
    copy = copy_project(tmp_path_factory.mktemp("restarted") / "project", steps)
    done = run_stages(stages_by_fork, copy, [["check"], *PREPARE])
    assert done.code == 0, done.output
    return copy


def start(project: Path, temporary: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"stages.{TRAIN[0]}", *TRAIN[1:]],
        cwd=project,
        env=environment(TMPDIR=str(temporary)),
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_rank_1(stage: subprocess.Popen[str], temporary: Path, times: int) -> list[int]:
    """As soon as it is at step 5, so often -> its processes."""
    killed: list[int] = []
    deadline = time.monotonic() + 120
    while len(killed) < times and time.monotonic() < deadline and stage.poll() is None:
        for child in psutil.Process(stage.pid).children():
            variables = rank_of(child)
            file = Path(variables.get("MINITRAIN_STORE", "/")).parent / "place-1"
            one = place.find_place(file)
            at_5 = one is not None and one.look().step >= 5
            if variables.get("RANK") == "1" and at_5 and child.pid not in killed:
                os.kill(child.pid, signal.SIGKILL)
                killed.append(child.pid)
        time.sleep(0.01)
    return killed


def rank_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_rank_that_is_killed_is_named_and_training_goes_on(
    stages_by_fork: str, project: Path, tmp_path: Path
) -> None:
    states = "data/runs/gloo-2/states"
    undisturbed = run_stages(stages_by_fork, project, [TRAIN])
    assert undisturbed.code == 0, undisturbed.output
    wanted = {f.name: f.read_bytes() for f in (project / states).iterdir()}
    stage = start(project, tmp_path)
    killed = kill_rank_1(stage, tmp_path, times=1)
    _, said = stage.communicate(timeout=GENEROUS_S)
    assert stage.returncode == 0, said
    match = re.search(rf"^{LINE}; starting again \(1 of 3\)$", said, re.M)
    assert match, said
    assert match[1] == str(killed[0])
    assert "error" not in said
    assert {f.name: f.read_bytes() for f in (project / states).iterdir()} == wanted


@pytest.mark.thorough
def test_rank_that_is_killed_is_the_end_where_no_restart_is_left(
    project: Path, tmp_path: Path
) -> None:
    set_params(project, {"launch.max_restarts": 0})
    stage = start(project, tmp_path)
    kill_rank_1(stage, tmp_path, times=1)
    started = time.monotonic()
    _, said = stage.communicate(timeout=GENEROUS_S)
    assert time.monotonic() - started < GENEROUS_S
    assert stage.returncode == 2
    assert re.search(rf"^error: {LINE}$", said, re.M), said
    assert "Traceback" not in said
