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
    if phase:
        mine = make_place(file_of(tmp_path, 0))
        mine.limit(0.05)
        mine.mark(0, phase)
    watch = HangMonitor(tmp_path, lambda: {0: process.pid})
    assert late(watch) is None
    monkeypatch.setattr("minitrain.harness.hang_monitor.STARTUP_S", 0.1)
    assert f"no answer within 0.1 s, hangs {where}" in str(late(watch))


@pytest.mark.parametrize("phase", ["setup", "", "start"])
def test_stopped_rank_has_no_longer_limit_at_the_start(
    phase: str,
    tmp_path: Path,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minitrain.harness.hang_monitor.STOPPED_S", 0.1)
    if phase:
        make_place(file_of(tmp_path, 0)).mark(0, phase)
    watch = HangMonitor(tmp_path, lambda: {0: process.pid})
    assert late(watch) is None
    process.send_signal(signal.SIGSTOP)
    (verdict,) = wait_for(lambda: [v for v in [watch.look()] if v], 1)
    assert "no answer within 0.1 s" in str(verdict)


def test_pause_of_the_launcher_is_none_of_the_ranks(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """An hour counts as half a second, and many slow polls are recognized."""
    mine = make_place(file_of(tmp_path, 0))
    mine.limit(1)
    mine.mark(2, "forward")
    watch = HangMonitor(tmp_path, lambda: {0: process.pid})
    late = []
    for _ in range(3):
        watch._looked_s -= 3600
        late.append(watch.look())
    assert late[:2] == [None, None]
    assert "no answer within 1 s, hangs at step 2" in str(late[2])


@pytest.mark.parametrize("failed", [True, False])
def test_ranks_end_with_those_of_another_host_and_with_the_monitor(
    failed: bool,
    tmp_path: Path,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a monitor, hanging ranks would never be killed."""
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    answer = Mock(side_effect=[False, RuntimeError("a bug") if failed else True])
    watch = HangMonitor(tmp_path, lambda: {0: process.pid}, answer)
    with watch.in_background():
        assert process.wait(GENEROUS_S) == -signal.SIGKILL
    assert watch.followed is not failed
    assert len(errors) == failed


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
