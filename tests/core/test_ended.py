"""A stage that is told to end cleans up, says so in a line, and nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from project import ROOT, environment
from waiting import ended as has_ended
from waiting import wait_for

from minitrain.core import ended
from minitrain.core.ended import LAUNCHER_PID, Stopped, stoppable
from minitrain.distributed import meeting

STAGE = """
import os, signal, sys, time
from pathlib import Path
from minitrain.core import ended
from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import atomic_path

ended.STOPPED_S = 3

def main():
    with atomic_path(Path("out")) as temporary:
        temporary.touch()
        Path("here").touch()
        time.sleep(abs(float(sys.argv[1])))
    if float(sys.argv[1]) < 0:
        raise UserError("a mistake")

run_stage(main)
"""
STARTS_A_RANK = """
import subprocess
rank = ["sh", "-c", "sleep 60 & wait"]
subprocess.Popen(rank, stderr=subprocess.DEVNULL, start_new_session=True)
"""
# it would wait for longer than the test
PATIENT = STAGE.replace("STOPPED_S = 3", "STOPPED_S = 600")
DVC = """
import os, subprocess, sys
subprocess.call([*sys.argv[1:]], env={**os.environ, "DVC_STAGE": "train@2"})
"""
GUARD = [sys.executable, "-I", "-S", str(ROOT / "minitrain/core/guard.py")]


def start(
    folder: Path, *command: str, seconds: float = 60, stage: str = STAGE
) -> subprocess.Popen[str]:
    (folder / "stage.py").write_text(stage)
    process = subprocess.Popen(
        [*command, "stage.py", str(seconds)],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT)),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: list(folder.glob("here")), count=1)
    return process


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A process that was told to end stays deaf: not this one."""
    before = {s: signal.getsignal(s) for s in ended.STOPS}
    yield
    for one, how in before.items():
        signal.signal(one, how)


@pytest.mark.parametrize("command", [[sys.executable], GUARD], ids=["alone", "guarded"])
@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "stopped by SIGTERM"),
        (signal.SIGHUP, "stopped by SIGHUP"),
    ],
)
def test_it_cleans_up_and_says_who_ended_it(
    command: list[str], number: int, line: str, tmp_path: Path
) -> None:
    process = start(tmp_path, *command)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (128 + number, f"error: {line}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"stage.py", "here"}


def test_signal_to_the_stage_and_not_to_its_guard(tmp_path: Path) -> None:
    process = start(tmp_path, *GUARD)
    (stage,) = psutil.Process(process.pid).children()
    stage.terminate()
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (143, "error: stopped by SIGTERM\n")
    assert not list(tmp_path.glob(".*"))


def test_a_second_signal_does_not_end_the_clean_up() -> None:
    cleaned = []

    def stage() -> None:
        with stoppable():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGHUP)
                cleaned.append(True)

    with pytest.raises(Stopped) as raised:
        stage()
    assert cleaned
    assert raised.value.number == signal.SIGTERM


def test_signals_are_as_before_after_it() -> None:
    before = [signal.getsignal(s) for s in ended.STOPS]
    with stoppable():
        assert [signal.getsignal(s) for s in ended.STOPS] != before
    assert [signal.getsignal(s) for s in ended.STOPS] == before


def test_a_rank_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LAUNCHER_PID == meeting.LAUNCHER_PID
    monkeypatch.setenv(LAUNCHER_PID, str(os.getppid()))
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# below zero it fails then
@pytest.mark.parametrize(
    "seconds", [60, 1.5, -1.5], ids=["at work", "at its end", "when it fails"]
)
def test_guard_that_is_stopped_alone_does_not_hold_up_dvc(
    seconds: float, tmp_path: Path
) -> None:
    process = start(tmp_path, *GUARD, seconds=seconds)
    (stage,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGSTOP)
    _, said = process.communicate(timeout=15)
    assert process.returncode == -signal.SIGKILL
    line = f"its guard (process {process.pid}) was stopped for 3 s"
    assert said == f"error: stopped: {line}\n"
    assert has_ended(stage)


def test_what_the_stage_started_ends_with_it_where_it_is_stopped_too(
    tmp_path: Path,
) -> None:
    """As a rank in its first moments: it has not asked yet to end with its parent."""
    process = start(tmp_path, *GUARD, stage=STARTS_A_RANK + STAGE)
    (stage,) = psutil.Process(process.pid).children()
    (rank,) = stage.children()
    ranks = [rank, *wait_for(rank.children, count=1)]
    rank.suspend()
    process.send_signal(signal.SIGSTOP)
    process.communicate(timeout=15)
    assert has_ended(stage)
    alive = [one for one in ranks if not has_ended(one)]
    for one in alive:
        one.kill()
    assert alive == []


def test_dvc_that_is_gone_is_not_waited_for_by_a_guard_that_is_stopped(
    tmp_path: Path,
) -> None:
    """Else the next DVC starts the stage beside this one."""
    (tmp_path / "dvc.py").write_text(DVC)
    process = start(tmp_path, sys.executable, "dvc.py", *GUARD, stage=PATIENT)
    (guard,) = psutil.Process(process.pid).children()
    (stage,) = guard.children()
    guard.suspend()
    process.kill()
    assert has_ended(stage, within_s=5)
    _, said = process.communicate(timeout=5)
    line = f"process {process.pid}, which waited for it, has ended"
    assert said == f"error: stopped: {line}\n"
    assert has_ended(guard)
    assert not list(tmp_path.glob(".*"))
