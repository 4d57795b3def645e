"""Hang monitor: polls the heartbeats of a host's ranks and names the one that hangs.

Waits of the training loop share one limit, which a rank sets as it joins. If the
heartbeat of a rank does not change for that long, or the rank timed out, the culprit is
a rank that does not answer, or is not in a wait. The monitor also records which rank
exited first, since torchrun then terminates all others, which are not the cause.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path

from minitrain.comm import heartbeat
from minitrain.comm.heartbeat import STARTUP_S, Heartbeat, Seen
from minitrain.core.errors import RankError
from minitrain.harness import stack_dump as stack
from minitrain.harness.failures import (
    GAVE_UP,
    LOST,
    Failure,
    began_it,
    failures_of,
    name_of,
    read_report,
    root_cause,
)
from minitrain.harness.stack_dump import Stack

POLL_S = 0.1
# most seconds that count between two polls: a longer pause stopped this process, too,
# as by Ctrl-Z or suspend
PAUSE_S = 0.5
# delay after the stack dumps, for the report of a rank that just timed out
REPORT_S = 0.5
# limit of waits for a rank that is stopped before it sets one
STOPPED_S = 30.0
# phases that may be slower than a step: imports, rendezvous, building, writing results
SLOW = ("", "setup", "write")
# delay after the early exit of a rank until the others are terminated; torchrun waits
# ten times as long, and forever if the exit code is 0
BURIED_S = 3.0
# limit at the end on a pending request to another host
ASKED_S = 0.5


def has_ended(pid: int) -> bool:
    """Return True if child ``pid`` is a zombie or gone, without reaping it."""
    try:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, how) is not None
    except ChildProcessError:
        return True


def is_stopped(pid: int) -> bool:
    """Return True if child ``pid`` is stopped, as by SIGSTOP."""
    with suppress(ChildProcessError):
        how = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, how) is not None
    return False


def end(pid: int) -> None:
    """Kill the rank with process id ``pid`` and the process group that it leads."""
    # the pid of a process that has exited may be reused
    kills = [os.killpg] if has_ended(pid) else [os.kill, os.killpg]
    for kill in kills:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


class _Rank:
    # durations in seconds, without pauses of the monitor
    def __init__(self, number: int, pid: int) -> None:
        self.number, self.pid = number, pid
        self.place: Heartbeat | None = None
        self.last: Seen | None = None
        self.report: Failure | None = None
        self.stack: Stack | None = None
        self.unchanged_s = self.stopped_s = self.gone_s = 0.0

    def look(self, folder: Path, passed_s: float) -> None:
        file = heartbeat.file_of(folder, self.number)
        self.place = self.place or heartbeat.find_place(file)
        seen = None if self.place is None else self.place.look()
        same, self.last = seen == self.last, seen
        self.report = self.report or read_report(folder, self.number)
        self.is_gone = has_ended(self.pid)
        phase = "" if seen is None else seen.phase
        passed_s, stopped = min(passed_s, PAUSE_S), is_stopped(self.pid)
        self.stopped_s = self.stopped_s + passed_s if stopped else 0.0
        begins_s = STOPPED_S if stopped else STARTUP_S
        self.limit_s = (seen.limit_s if seen else 0) or begins_s
        if phase in SLOW and not stopped:
            self.limit_s = max(self.limit_s, STARTUP_S)
        self.unchanged_s = self.unchanged_s + passed_s if same else 0.0
        self.gone_s = self.gone_s + passed_s if self.is_gone else 0.0
        self.is_at_work = not (self.is_gone and phase in heartbeat.AFTER)
        # Python unregisters the dump handler at exit, so that the signal would kill
        at_work = self.report is None and phase not in ("", "end")
        self.can_answer = at_work and not self.is_gone
        # user code that need not update the heartbeat stays in phase start
        watched_s = 0.0 if phase == "start" else self.unchanged_s
        self.is_late = (self.stopped_s if stopped else watched_s) >= self.limit_s

    @property
    def kind(self) -> int:
        return self.report.kind if isinstance(self.report, RankError) else 0

    @property
    def waits(self) -> bool:
        return self.kind >= LOST or (self.stack is not None and self.stack.waits)

    @property
    def innocence(self) -> int:
        # signs of the rank that others wait for, most reliable first
        signs = [self.stopped_s > 0, self.place is None, self.stack is None]
        return [*signs, not self.waits, True].index(True)

    @property
    def where(self) -> str:
        at = "before its first heartbeat" if self.last is None else str(self.last)
        return ", ".join(filter(None, [at, str(self.stack or "")]))


class HangMonitor:
    """Monitor that detects hanging ranks of this host and then kills all its ranks, in
    :meth:`in_background`. A run of more than ``timeout_s`` seconds counts as hung.

    ``folder``: private folder of the run, with the ranks' heartbeats. ``pids()``
    returns the process ids known so far, by rank; ``elsewhere()`` returns True once
    ranks of another host have failed (None if there is no other host).
    """

    def __init__(
        self,
        folder: Path,
        pids: Callable[[], Mapping[int, int]],
        elsewhere: Callable[[], bool] | None = None,
        timeout_s: float = math.inf,
    ) -> None:
        self._folder, self._pids, self._elsewhere = folder, pids, elsewhere
        self._ranks: dict[int, _Rank] = {}
        self._timeout_s = timeout_s
        self._began_s = self._looked_s = time.monotonic()
        self.verdict: RankError | None = None
        # ranks that exited early, before any was terminated for it
        self.first: set[int] = set()
        # True if ranks not in ``first`` were killed because another host's had failed
        self.followed = False
        self._ended_there, self._over = threading.Event(), threading.Event()

    def look(self) -> RankError | None:
        """Poll all ranks once. Return an error that names the hanging rank (all if it
        is unknown), or None; also None if a rank exited early: see :meth:`cause`.
        """
        now = time.monotonic()
        passed_s = now - self._looked_s
        self._looked_s = now
        self._look_at_ranks(passed_s)
        ranks = self._at_work()
        if gone := {rank.number for rank in ranks if rank.is_gone}:
            # its exit is the cause
            self.first = self.first or gone
            return None
        late = [rank for rank in ranks if rank.is_late]
        gave_up = [rank for rank in ranks if rank.kind == GAVE_UP]
        # a single rank's own report is used
        if late or (gave_up and len(ranks) > 1):
            self.verdict = self._blame(max(r.limit_s for r in late or gave_up))
        elif ranks and now - self._began_s > self._timeout_s:
            self.verdict = self._blame(self._timeout_s)
        return self.verdict

    def _look_at_ranks(self, passed_s: float) -> None:
        for number, pid in self._pids().items():
            self._ranks.setdefault(number, _Rank(number, pid))
        for rank in self._ranks.values():
            rank.look(self._folder, passed_s)

    def _at_work(self) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if rank.is_at_work]

    def _until_one_ends(self) -> None:
        # immediately, before torchrun terminates the others
        fds = []
        for rank in self._ranks.values():
            with suppress(OSError):
                fds += [] if rank.is_gone else [os.pidfd_open(rank.pid)]
        try:
            # wait() returns immediately for an empty list
            wait(fds, POLL_S) if fds else time.sleep(POLL_S)
        finally:
            for fd in fds:
                os.close(fd)

    def _blame(self, waited_s: float) -> RankError:
        ranks = self._at_work()
        asked = [rank for rank in ranks if rank.can_answer]
        stacks = stack.ask(
            {r.pid: heartbeat.file_of(self._folder, r.number, "stack") for r in asked}
        )
        time.sleep(REPORT_S)
        self._look_at_ranks(0.0)
        for rank in ranks:
            rank.stack = stacks.get(rank.pid)
            if isinstance(rank.report, RankError):
                rank.stack = Stack(rank.report.__notes__[0], innermost_last=True)
        least = min(rank.innocence for rank in ranks)
        guilty = [rank for rank in ranks if rank.innocence == least]
        error = RankError(_sentence(guilty, ranks, waited_s))
        error.kind, error.of_another = GAVE_UP, guilty[0].waits
        return error

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Context manager: poll in a thread while the body runs. Kills all ranks if one
        hangs (:attr:`verdict` then holds the error), if one has exited early and
        BURIED_S seconds have passed, and if ranks of another host have failed.
        """
        watch, ask = (
            threading.Thread(target=self._run, args=(job,), daemon=True)
            for job in (self._watch, self._ask)
        )
        watch.start()
        ask.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()
            ask.join(ASKED_S)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException:
            # without a monitor, hanging ranks would never be killed
            for rank in self._ranks.values():
                end(rank.pid)
            raise

    def _watch(self) -> None:
        while not self._over.is_set():
            self._until_one_ends()
            over_here = self.look() is not None
            over_here |= any(rank.gone_s >= BURIED_S for rank in self._at_work())
            self.followed = not over_here and self._ended_there.is_set()
            if over_here or self.followed:
                return self.end_all()

    def _ask(self) -> None:
        # in a separate thread, since another host may be slow to answer
        while self._elsewhere is not None and not self._over.wait(POLL_S):
            if self._elsewhere():
                return self._ended_there.set()

    def end_all(self) -> None:
        """Kill all ranks and their process groups."""
        for pid in self._pids().values():
            end(pid)

    def cause(self, codes: Mapping[int, int]) -> Failure | None:
        """Return the failure to report (a detected hang, else the root cause), or None
        if all ranks succeeded. Call this when all have exited. ``codes``: exit codes of
        the ranks that failed.
        """
        if self.verdict is not None:
            return self.verdict
        cause = root_cause(failures_of(self._folder, self._pids(), codes), self.first)
        if self.followed and isinstance(cause, RankError):
            # a rank that did not begin it was killed because another host failed
            cause.of_another |= not began_it(cause, self.first)
        return cause


def _sentence(guilty: list[_Rank], ranks: list[_Rank], waited_s: float) -> str:
    first, *more = guilty
    silent = f"no answer within {waited_s:g} s"
    if len(guilty) == len(ranks) > 1:
        # ranks wait in different calls; unknown which are wrong
        each = "; ".join(f"rank {rank.number} {rank.where}" for rank in ranks)
        return f"{silent} from any rank: {each}"
    how = "does not respond" if first.can_answer and not first.stack else "hangs"
    line = f"{name_of(first.number, first.pid)}: {silent}, {how} {first.where}".rstrip()
    numbers = ", ".join(str(rank.number) for rank in more)
    return f"{line}; rank {numbers} too" if more else line
