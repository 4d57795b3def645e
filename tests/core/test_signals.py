import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from project import ROOT, environment, run_python
from waiting import GENEROUS_S, ended, wait_for

from minitrain.core import signals
from minitrain.core.signals import LAUNCHER_PID, STAGE, Stopped, stoppable

PROGRAM = """
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


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the handlers, since a signaled process ignores later signals."""
    before = {s: signal.getsignal(s) for s in signals.STOPS}
    yield
    for one, how in before.items():
        signal.signal(one, how)


@pytest.mark.parametrize(
    ("number", "line"),
    [(signal.SIGINT, "interrupted"), (signal.SIGHUP, "stopped by SIGHUP")],
)
def test_it_cleans_up_and_says_who_ended_it(
    number: int, line: str, tmp_path: Path
) -> None:
    (tmp_path / "stage.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "stage.py"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: list(tmp_path.glob("here")), count=1)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=GENEROUS_S)
    assert (process.returncode, said) == (128 + number, f"error: {line}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"stage.py", "here"}


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


def test_handlers_outside_of_a_stage_and_in_a_rank(monkeypatch) -> None:
    before = [signal.getsignal(s) for s in signals.STOPS]
    with stoppable():
        assert [signal.getsignal(s) for s in signals.STOPS] != before
    assert [signal.getsignal(s) for s in signals.STOPS] == before
    # a rank exits immediately
    monkeypatch.setenv(LAUNCHER_PID, str(os.getppid()))
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# like DVC: a shell that execs the stage, with its name
DVC = """
import os, subprocess, sys
variables = {**os.environ, "DVC_STAGE": "train@2"}
subprocess.call(f"exec sh stage {sys.argv[1]}", shell=True, env=variables)
"""
# as stages/python does
SHELL = f"""export {STAGE}="$$ $PPID"; exec {sys.executable} "$@" """
# a stage that gets a signal, or loses DVC, during imports
IMPORTS = """
import minitrain, time
from pathlib import Path
Path("here").touch()
time.sleep(60)
"""


@pytest.fixture
def dvc(tmp_path: Path) -> Iterator[Callable[[str], psutil.Process]]:
    """Start programs as DVC does; kill the rest at the end."""
    (tmp_path / "dvc.py").write_text(DVC)
    (tmp_path / "stage").write_text(SHELL)
    (tmp_path / "stage.py").write_text(PROGRAM)
    (tmp_path / "imports.py").write_text(IMPORTS)
    started: list[psutil.Process] = []

    def begin(program: str) -> psutil.Process:
        with open(tmp_path / "stderr", "w") as stderr:
            process = psutil.Popen(
                [sys.executable, "dvc.py", program],
                cwd=tmp_path,
                env=environment(PYTHONPATH=str(ROOT)),
                stderr=stderr,
            )
        wait_for(lambda: list(tmp_path.glob("here")), count=1)
        (stage,) = wait_for(process.children, count=1)
        started.extend([process, stage])
        return stage

    yield begin
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()
        one.wait()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["stage.py", "imports.py"])
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_stage_ends_with_dvc(
    program: str, kill: int, dvc: Callable[[str], psutil.Process], tmp_path: Path
) -> None:
    stage = dvc(program)
    psutil.Process(stage.ppid()).send_signal(kill)
    assert ended(stage)
    assert (tmp_path / "stderr").read_text() == "error: stopped by SIGTERM\n"
    assert not list(tmp_path.glob(".*"))


def test_signal_while_it_imports_is_one_line(
    dvc: Callable[[str], psutil.Process], tmp_path: Path
) -> None:
    stage = dvc("imports.py")
    stage.send_signal(signal.SIGINT)
    assert ended(stage)
    assert (tmp_path / "stderr").read_text() == "error: interrupted\n"


def test_stage_of_a_shell_may_outlive_it(tmp_path: Path) -> None:
    """Without DVC, as with nohup."""
    (tmp_path / "imports.py").write_text(IMPORTS)
    inner = f'export {STAGE}="$$ $PPID"; exec {sys.executable} imports.py'
    done = subprocess.run(
        ["sh", "-c", 'sh -c "$1" >&2 & echo $!', "sh", inner],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
    )
    stage = psutil.Process(int(done.stdout))
    try:
        wait_for(lambda: list(tmp_path.glob("here")), count=1)
        assert stage.is_running()
    finally:
        stage.kill()
        stage.wait()


def test_stage_whose_dvc_has_gone_does_not_begin(tmp_path: Path) -> None:
    """DVC exited while Python started, which the kernel does not signal."""
    code = f"import os; os.environ[{STAGE!r}] = f'{{os.getpid()}} 0'; import minitrain"
    done = run_python("-c", code, DVC_STAGE="train@2")
    assert done.returncode == signals.EXIT_ORPHAN


def test_stage_that_does_not_clean_up_is_ended() -> None:
    code = """
import signal
from minitrain.core import signals
signals.GRACE_S = 1
with signals.stoppable():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        # a loop in C that holds the GIL
        sum(range(10**12))
"""
    assert run_python("-c", code).returncode == -signal.SIGALRM
