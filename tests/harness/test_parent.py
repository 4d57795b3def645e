import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from project import ROOT, environment, run_python
from waiting import GENEROUS_S, wait_for
from waiting import ended as has_ended

from minitrain.comm.store import STORE

pytestmark = pytest.mark.real_launch
# a rank that is stopped before it has imported any module but the package
EARLY = """
import os, subprocess, sys, time
stops = "import minitrain, os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
os.environ["MINITRAIN_LAUNCHER_PID"] = str(os.getpid())
subprocess.Popen([sys.executable, "-c", stops], start_new_session=True)
time.sleep(60)
"""
LAUNCH = "import faulty_rank as f; from minitrain import launch; launch(f.be_a_rank, 2,"


@pytest.mark.parametrize(
    ("how", "command"),
    [
        ("stops", ["-m", "faulty_rank", "stops", "2", "60"]),
        ("works", ["-c", f"{LAUNCH} 'works', 60.0)"]),
    ],
    ids=["torchrun", "launch"],
)
def test_ranks_end_when_their_launcher_is_killed(
    how: str, command: list[str], tmp_path: Path
) -> None:
    """kill -9 runs no cleanup, and a stopped process runs no code."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT / "tests/support",
        env=environment(TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT)),
    )
    ranks = wait_for(lambda: psutil.Process(process.pid).children(), count=2)
    wait_for(lambda: at_fault(tmp_path), count=1)
    if how == "stops":
        stopped = psutil.STATUS_STOPPED
        wait_for(lambda: [r for r in ranks if r.status() == stopped], count=1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    gone, alive = psutil.wait_procs(ranks, timeout=GENEROUS_S)
    for rank in alive:
        rank.kill()
    assert len(gone) == 2


def test_rank_that_is_stopped_while_it_starts_ends_with_its_launcher() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", EARLY], env=environment(PYTHONPATH=str(ROOT))
    )
    (rank,) = wait_for(lambda: psutil.Process(process.pid).children(), count=1)
    stopped = psutil.STATUS_STOPPED
    wait_for(lambda: [rank] if rank.status() == stopped else [], count=1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    gone = has_ended(rank)
    if not gone:
        rank.kill()
    assert gone


def at_fault(temporary: Path) -> list[Path]:
    from minitrain.comm.heartbeat import find_place

    found = [(file, find_place(file)) for file in temporary.glob("*/place-1")]
    return [file for file, one in found if one and one.look().step == 2]


def test_rank_whose_launcher_is_gone_already_ends() -> None:
    code = "from minitrain.core.signals import end_with_launcher;"
    code += "end_with_launcher(); print('still here')"
    # not its parent's pid
    done = run_python("-c", code, MINITRAIN_LAUNCHER_PID="1", **{STORE: "x"})
    assert (done.returncode, done.stdout) == (2, "")
