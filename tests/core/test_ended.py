"""A stage that is told to end cleans up, says so in a line, and nothing else."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from project import ROOT, environment
from waiting import wait_for

from minitrain.core import ended
from minitrain.core.ended import LAUNCHER_PID, Stopped, stoppable
from minitrain.distributed import meeting

STAGE = """
import os, signal, sys, time
from pathlib import Path
from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path

def main():
    with atomic_path(Path("out")) as temporary:
        temporary.touch()
        Path("here").touch()
        time.sleep(60)

run_stage(main)
"""
GUARD = [sys.executable, "-I", "-S", str(ROOT / "minitrain/core/guard.py")]


def start(
    folder: Path, *command: str, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    (folder / "stage.py").write_text(STAGE)
    process = subprocess.Popen(
        [*command, "stage.py"],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT)),
        stderr=stderr,
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


@pytest.mark.parametrize("command", [[sys.executable], GUARD], ids=["alone", "guarded"])
def test_on_a_terminal_it_begins_a_line(command: list[str], tmp_path: Path) -> None:
    """Which shows Ctrl-C as ^C, without a line's end."""
    terminal, stderr = pty.openpty()
    process = start(tmp_path, *command, stderr=stderr)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(10) == 130
    os.close(stderr)
    assert os.read(terminal, 1000) == b"\r\nerror: interrupted\r\n"
    os.close(terminal)


def test_signal_to_the_stage_and_not_to_its_guard(tmp_path: Path) -> None:
    process = start(tmp_path, *GUARD)
    guard = psutil.Process(process.pid)
    (stage,) = [one for one in guard.children() if one.cmdline() != guard.cmdline()]
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
