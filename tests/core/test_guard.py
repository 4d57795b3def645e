"""The guard of a stage: who ends with whom, and what is said."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from project import ROOT, environment
from waiting import ended, wait_for

from minitrain.core import guard

GUARD = "minitrain/core/guard.py"
# a stage that says who it is, and does what its argument says
STAGE = """
import os, subprocess, sys, time
from pathlib import Path
Path(f"pid-{os.getpid()}").touch()
exec(sys.argv[1])
"""
SLEEP = "time.sleep(60)"
# what DVC does: a shell, in its own process group, with the name of the stage
DVC = """
import os, subprocess, sys
subprocess.call([*sys.argv[1:]], env={**os.environ, "DVC_STAGE": "train@2"})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "dvc.py").write_text(DVC)
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """What a test started in sessions of their own; nothing of it is left after it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        for one in psutil.process_iter():
            try:
                if os.getsid(one.pid) == process.pid:
                    one.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                pass
        process.communicate()


def guarded(body: str, limit: str = "") -> list[str]:
    """A command that runs ``body`` under guard; ``limit`` changes its limits."""
    if limit:
        changed = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        changed += f"from minitrain.core import guard\n{limit}\nsys.exit(guard.main())"
        return [sys.executable, "-c", changed, "stage.py", body]
    return [sys.executable, "-I", "-S", str(ROOT / GUARD), "stage.py", body]


def start(
    folder: Path, started: list[subprocess.Popen[str]], command: list[str]
) -> tuple[subprocess.Popen[str], psutil.Process]:
    """The process, and the stage below it as soon as it runs."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    (file,) = wait_for(lambda: list(folder.glob("pid-*")), count=1)
    return process, psutil.Process(int(file.name.removeprefix("pid-")))


def outcome(process: subprocess.Popen[str], within_s: float) -> tuple[int, str]:
    """Exit code and stderr."""
    _, said = process.communicate(timeout=within_s)
    return process.returncode, said


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_exit_code_is_that_of_the_stage(folder: Path, code: int) -> None:
    command = guarded(f"sys.exit({code})")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "stopped by SIGTERM"),
        (signal.SIGHUP, "stopped by SIGHUP"),
        (signal.SIGQUIT, "stopped by SIGQUIT"),
    ],
)
def test_a_signal_is_one_line_also_while_it_imports(
    folder: Path, started: list[subprocess.Popen[str]], number: int, line: str
) -> None:
    process, stage = start(folder, started, guarded(SLEEP))
    # as a terminal does: to the whole group
    os.killpg(process.pid, number)
    assert outcome(process, 5) == (128 + number, f"error: {line}\n")
    assert ended(stage)


# interrupted when it imports the first module that takes time
HASTY = """
import builtins, os, runpy, signal, sys
usual = builtins.__import__
def interrupted(name, *rest):
    if name == "ctypes":
        os.kill(os.getpid(), signal.SIGINT)
    return usual(name, *rest)
builtins.__import__ = interrupted
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_a_signal_is_one_line_also_while_the_guard_is_imported(folder: Path) -> None:
    guarding = [str(ROOT / GUARD), "stage.py", SLEEP]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", HASTY, *guarding],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_what_the_caller_ignores_stays_ignored(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """nohup: the terminal is closed, the stage goes on."""
    process, stage = start(folder, started, ["nohup", *guarded(SLEEP)])
    process.send_signal(signal.SIGHUP)
    assert not ended(stage, within_s=1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_killed_stage_is_named(
    folder: Path, started: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process, stage = start(folder, started, guarded(SLEEP))
    stage.send_signal(number)
    _, said = process.communicate(timeout=5)
    assert process.returncode == 2
    name = f"error: the stage (process {stage.pid}) was killed by {number.name}"
    assert said.startswith(name)
    assert said.count("\n") == 1


@pytest.mark.parametrize("stopped", [False, True])
def test_stage_ends_with_its_guard(
    folder: Path, started: list[subprocess.Popen[str]], stopped: bool
) -> None:
    process, stage = start(folder, started, guarded(SLEEP))
    if stopped:
        stage.suspend()
    process.kill()
    assert ended(stage)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("shell", ["", "exec ", "stays"])
def test_stage_ends_with_dvc(
    folder: Path, started: list[subprocess.Popen[str]], shell: str, number: int
) -> None:
    """Also where a shell stands between them, which older ones do."""
    words = " ".join(f"'{word}'" for word in guarded(SLEEP))
    line = f"{words}; exit $?" if shell == "stays" else shell + words
    dvc = [sys.executable, "dvc.py", "/bin/sh", "-c", line]
    process, stage = start(folder, started, dvc)
    between = psutil.Process(process.pid).children()[0].name()
    assert between == {"stays": "sh", "exec ": "python"}.get(shell, between)
    process.send_signal(number)
    assert ended(stage)
    process.wait(5)
    assert process.stderr
    said = process.stderr.read()
    waited = f"process {process.pid}, which waited for it, has ended"
    assert said == f"error: stopped: {waited}\n"


def test_nothing_starts_when_dvc_has_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(guard.DVC_STAGE, "train@2")
    monkeypatch.setenv(guard.STARTED_BY, str(os.getpid() + 1))
    command = guarded("1")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 129
    assert done.stderr == "error: stopped: what started it has ended\n"
    assert not list(folder.glob("pid-*"))


def test_who_adopts_orphans_is_not_dvc(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC shares a process group with what it starts; here nobody does."""
    monkeypatch.setenv(guard.DVC_STAGE, "train@2")
    command = guarded("1")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, start_new_session=True
    )
    assert done.returncode == 129
    assert not list(folder.glob("pid-*"))


def test_stage_that_is_stopped_alone_ends(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    command = guarded(SLEEP, "guard.STOPPED_S = 1")
    process, stage = start(folder, started, command)
    stage.suspend()
    _, said = process.communicate(timeout=10)
    assert process.returncode == 2
    assert said == (
        f"error: the stage (process {stage.pid}) was stopped by a signal and did not "
        "go on for 1 s\n"
    )


def test_stage_that_goes_on_again_does_not_end(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    command = guarded("time.sleep(4); sys.exit(5)", "guard.STOPPED_S = 1.2")
    process, stage = start(folder, started, command)
    stage.suspend()
    time.sleep(0.5)
    stage.resume()
    # and Ctrl-Z stops both: no time passes for the guard
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(2)
    os.killpg(process.pid, signal.SIGCONT)
    assert outcome(process, 10) == (5, "")


def test_stage_that_does_not_clean_up_in_time_is_killed(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    ignore = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    command = guarded(ignore, "guard.GRACE_S = 0.5")
    process, _ = start(folder, started, command)
    time.sleep(0.3)
    process.terminate()
    assert outcome(process, 5) == (143, "error: stopped by SIGTERM\n")


def test_what_a_stage_leaves_behind_ends(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """And the children of that, though they are in sessions of their own."""
    inner = "subprocess.Popen(['setsid', 'sh', '-c', 'sleep 61; sleep 62'])"
    command = guarded(f"{inner}; time.sleep(0.5)", "guard.ORPHANS_S = 0.2")
    process, _ = start(folder, started, command)
    (left,) = wait_for(
        lambda: [
            p
            for p in psutil.process_iter(["cmdline"])
            if p.info["cmdline"] == ["sleep", "61"]
        ],
        count=1,
    )
    process.communicate(timeout=5)
    assert process.returncode == 0
    assert ended(left)


# something that is there when the stage has ended, for three seconds
LEAVES = "subprocess.Popen(['setsid', 'sleep', '63'], stderr=subprocess.DEVNULL)"


def wakers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Forks of the guard; its stage runs another command, and the dead none."""
    guard, found = psutil.Process(process.pid), []
    for child in guard.children():
        with suppress(psutil.NoSuchProcess):
            found += [child] if child.cmdline() == guard.cmdline() else []
    return found


def waker_of(process: subprocess.Popen[str]) -> psutil.Process:
    (waker,) = wakers_of(process)
    return waker


# the second: at its very end, when the stage itself is there no longer
@pytest.mark.parametrize("body", ["time.sleep(3); sys.exit(5)", "sys.exit(5)"])
def test_guard_that_is_stopped_alone_goes_on(
    folder: Path, started: list[subprocess.Popen[str]], body: str
) -> None:
    command = guarded(f"time.sleep(0.5); {body}", "guard.STOPPED_S = 1")
    process, _ = start(folder, started, command)
    process.send_signal(signal.SIGSTOP)
    assert outcome(process, 10) == (5, "")


def test_guard_that_is_stopped_while_it_cleans_up_goes_on(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    command = guarded(f"{LEAVES}; time.sleep(1)", "guard.STOPPED_S = 1")
    process, stage = start(folder, started, command)
    waker = waker_of(process)
    assert ended(stage)
    process.send_signal(signal.SIGSTOP)
    assert outcome(process, 10) == (0, "")
    assert ended(waker)


def test_both_stopped_each_alone_end(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    command = guarded(SLEEP, "guard.STOPPED_S = 1")
    process, stage = start(folder, started, command)
    stage.suspend()
    process.send_signal(signal.SIGSTOP)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 2
    assert said.endswith("was stopped by a signal and did not go on for 1 s\n")


def test_dvc_that_is_gone_is_not_waited_for_by_a_guard_that_is_stopped(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """Else the next DVC starts the stage beside this one."""
    dvc = [sys.executable, "dvc.py", *guarded(SLEEP, "guard.STOPPED_S = 600")]
    process, stage = start(folder, started, dvc)
    (between,) = psutil.Process(process.pid).children()
    between.suspend()
    process.kill()
    assert ended(stage)
    _, said = process.communicate(timeout=5)
    line = f"process {process.pid}, which waited for it, has ended"
    assert said == f"error: stopped: {line}\n"
    assert ended(between)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_waker_that_cannot_wake_has_a_successor(
    folder: Path, started: list[subprocess.Popen[str]], how: signal.Signals
) -> None:
    command = guarded("time.sleep(6); sys.exit(5)", "guard.STOPPED_S = 1")
    process, _ = start(folder, started, command)
    waker = waker_of(process)
    # what ends the guard does not end it before
    for number in (*guard.STOPS, signal.SIGCONT):
        waker.send_signal(number)
    time.sleep(1)
    assert waker_of(process) == waker
    waker.send_signal(how)
    wait_for(lambda: [one for one in wakers_of(process) if one != waker], count=1)
    process.send_signal(signal.SIGSTOP)
    assert outcome(process, 10) == (5, "")


def test_a_waker_that_is_killed_at_the_end_has_a_successor(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    command = guarded(f"{LEAVES}; time.sleep(1)", "guard.STOPPED_S = 1")
    process, stage = start(folder, started, command)
    waker = waker_of(process)
    assert ended(stage)
    waker.kill()
    wait_for(lambda: [one for one in wakers_of(process) if one != waker], count=1)
    process.send_signal(signal.SIGSTOP)
    assert outcome(process, 10) == (0, "")


def test_without_memory_for_a_waker_the_stage_goes_on(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    fails = """
import errno, os
fork, calls = os.fork, []
def fails_first():
    calls.append(1)
    if len(calls) in (1, 3):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = fails_first
"""
    command = guarded("time.sleep(2); sys.exit(5)", fails)
    process, _ = start(folder, started, command)
    assert wait_for(lambda: wakers_of(process), count=1)
    assert outcome(process, 10) == (5, "")


def test_dvc_that_is_gone_is_seen_amid_signals(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """Of orphans that the guard adopts, one after the other."""
    busy = "while 1: subprocess.call(['sh', '-c', 'sleep 0.1 & exit']); time.sleep(.1)"
    dvc = [sys.executable, "dvc.py", *guarded(busy)]
    process, stage = start(folder, started, dvc)
    process.kill()
    assert ended(stage)


def test_no_time_to_clean_up_passes_while_all_are_stopped(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    cleans = "(time.sleep(1), Path('cleaned').touch(), sys.exit(1))"
    body = f"import signal; signal.signal(signal.SIGTERM, lambda *_: {cleans}); {SLEEP}"
    process, _ = start(folder, started, guarded(body, "guard.GRACE_S = 2.5"))
    time.sleep(0.5)
    process.terminate()
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.killpg(process.pid, signal.SIGCONT)
    assert outcome(process, 10) == (143, "error: stopped by SIGTERM\n")
    assert (folder / "cleaned").exists()


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_exit_code_is_the_same_where_nobody_reads(
    folder: Path, started: list[subprocess.Popen[str]], where: str
) -> None:
    words = " ".join(f"'{word}'" for word in guarded(SLEEP))
    shell = ["sh", "-c", f"exec {words} {where}"]
    process, stage = start(folder, started, shell)
    process.send_signal(signal.SIGINT)
    assert outcome(process, 5) == (130, "")
    assert ended(stage)


def test_stage_that_cannot_be_started_is_said(folder: Path) -> None:
    missing = "sys.executable = '/nowhere/python'"
    command = guarded("1", missing)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    line = "error: /nowhere/python: No such file or directory\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_waker_holds_no_lock_and_no_pipe(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    process, _ = start(folder, started, guarded(SLEEP))
    waker = waker_of(process)
    # it starts as a copy that has them
    wait_for(lambda: [True for _ in [1] if waker.num_fds() == 0], count=1)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_waker_ends_with_its_guard(
    folder: Path, started: list[subprocess.Popen[str]], how: str
) -> None:
    process, _ = start(folder, started, guarded(SLEEP))
    waker = waker_of(process)
    if how == "stopped":
        waker.suspend()
        process.terminate()
    else:
        process.kill()
    process.communicate(timeout=10)
    assert ended(waker)


def test_one_that_has_ended_does_not_save_the_others() -> None:
    gone, there = (subprocess.Popen(["sleep", time]) for time in ("0", "60"))
    gone.wait()
    guard.kill({gone.pid, there.pid})
    assert there.wait(timeout=10) == -signal.SIGKILL
