import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from waiting import GENEROUS_S, wait_for

from minitrain.comm.heartbeat import file_of, make_place
from minitrain.core.errors import RankError
from minitrain.harness.failures import LOST, write_report
from minitrain.harness.hang_monitor import HangMonitor


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as sleeps:
        yield sleeps
        sleeps.kill()


def late(watch: HangMonitor) -> RankError | None:
    """Return the result of three polls, 0.1 s apart."""
    for _ in range(3):
        watch.look()
        time.sleep(0.1)
    return watch.verdict


# imports, building the model and writing results may take longer than a step
@pytest.mark.parametrize(
    ("phase", "where"),
    [
        ("setup", "before its first step"),
        ("", "before its first heartbeat"),
        ("write", "after its last step"),
    ],
)
def test_start_and_end_have_a_limit_of_their_own(
    phase: str,
    where: str,
    tmp_path: Path,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minitrain.harness.hang_monitor.STOPPED_S", 0.05)
    if phase:
        mine = make_place(file_of(tmp_path, 0))
        mine.limit(0.05)
        mine.mark(0, phase)
    watch = HangMonitor(tmp_path, lambda: {0: process.pid})
    assert late(watch) is None
    monkeypatch.setattr("minitrain.harness.hang_monitor.STARTUP_S", 0.1)
    assert f"no answer within 0.1 s, hangs {where}" in str(late(watch))


def test_pause_of_the_launcher_is_none_of_the_ranks(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """An hour counts as half the limit, and many slow polls are recognized."""
    mine = make_place(file_of(tmp_path, 0))
    mine.limit(1.5)
    mine.mark(2, "forward")
    watch = HangMonitor(tmp_path, lambda: {0: process.pid})
    late = []
    for _ in range(3):
        watch._looked_s -= 3600
        late.append(watch.look())
    assert late[:2] == [None, None]
    assert "no answer within 1.5 s, hangs at step 2" in str(late[2])


def test_a_monitor_that_fails_ends_the_ranks_and_says_why(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """Without it, hanging ranks would never be killed."""
    answers = iter([{0: process.pid}])
    monitor = HangMonitor(tmp_path, lambda: next(answers))
    with monitor.in_background():
        process.wait(GENEROUS_S)
    assert isinstance(monitor.cause({}), StopIteration)


def test_who_hangs_here_is_found_while_another_host_does_not_answer(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    mine = make_place(file_of(tmp_path, 0))
    asked, answers = threading.Event(), threading.Event()

    def ended_elsewhere() -> bool:
        asked.set()
        return answers.wait(2 * GENEROUS_S)

    mine.limit(1)
    mine.mark(2, "forward")
    # before its limit starts, or else a slow test would report a hang
    os.kill(process.pid, signal.SIGSTOP)
    watch = HangMonitor(tmp_path, lambda: {0: process.pid}, ended_elsewhere)
    with watch.in_background():
        assert asked.wait(GENEROUS_S)
        process.wait(GENEROUS_S)
        began = time.monotonic()
    # the end does not wait for the answer either
    assert time.monotonic() - began < GENEROUS_S
    answers.set()
    assert "no answer within 1 s, stopped" in str(watch.verdict)
    assert not watch.followed


@pytest.mark.parametrize("leaving", [False, True])
def test_rank_that_ended_first_here_did_not_follow_another_host(
    leaving: bool, tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """Ranks of another host lost it and report that immediately."""
    for number in (2, 3):
        make_place(file_of(tmp_path, number)).mark(2, "forward")
    if leaving:
        error = RankError("rank 2 (process 1 on a): Connection reset by peer")
        error.rank, error.kind, error.of_another = 2, LOST, True
        write_report(tmp_path, 2, error)
    told = threading.Event()
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as crashes:
        pids = {2: crashes.pid, 3: process.pid}
        watch = HangMonitor(tmp_path, lambda: pids, told.is_set)
        with watch.in_background():
            crashes.send_signal(signal.SIGSEGV)
            wait_for(lambda: [*watch.first], 1)
            assert watch.first == {2}
            told.set()
            # it exits with the ranks of the other host
            assert process.wait(GENEROUS_S) == -signal.SIGKILL
    assert watch.followed
    assert watch.verdict is None
    cause = watch.cause({2: -signal.SIGSEGV, 3: -signal.SIGKILL})
    assert isinstance(cause, RankError)
    assert str(cause).startswith("rank 2 ")
    assert cause.of_another is leaving


def test_question_that_fails_is_asked_again(
    tmp_path: Path,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracebacks: list[object] = []
    monkeypatch.setattr(threading, "excepthook", tracebacks.append)
    ended_elsewhere = Mock(side_effect=[RuntimeError("an unexpected answer"), True])
    watch = HangMonitor(tmp_path, lambda: {0: process.pid}, ended_elsewhere)
    with watch.in_background():
        assert process.wait(GENEROUS_S) == -signal.SIGKILL
    assert watch.followed
    assert not tracebacks
    assert ended_elsewhere.call_count == 2


def test_another_host_is_not_asked_after_the_end(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    # a late answer could arrive while torch is being unloaded
    asking, answered = threading.Event(), threading.Event()

    def ended_elsewhere() -> bool:
        asking.set()
        time.sleep(0.2)
        answered.set()
        return False

    watch = HangMonitor(tmp_path, lambda: {0: process.pid}, ended_elsewhere)
    with watch.in_background():
        assert asking.wait(GENEROUS_S)
    assert "_ask" not in [one.name for one in threading.enumerate()]
    assert answered.is_set()
