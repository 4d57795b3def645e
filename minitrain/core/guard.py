"""The guard of a stage: it ends with the DVC that runs it, and nobody outlives it.

    python -I -S minitrain/core/guard.py SCRIPT ...

``stages/python`` starts a stage so, on Linux. The guard is small and imports nothing of
ours, so that it is there at once and answers while the stage imports torch. It

- ends the stage when it is told to (SIGTERM, SIGHUP, SIGINT, SIGQUIT), and when DVC,
  or a shell between DVC and itself, is gone, by kill -9 too;
- ends a stage that was stopped (SIGSTOP) alone, for which DVC would wait for ever;
- says in one line which process was killed by which signal;
- adopts what the stage leaves behind, and ends that.

When the guard itself is killed, the kernel kills the stage. When it alone is stopped,
its waker has it go on: a fork of it, which does nothing else and ends with it. DVC
ignores SIGINT as long as a stage runs: Ctrl-C reaches the stage because a terminal
sends it to everybody.
"""

import os
import signal
import sys

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
if __name__ == "__main__":
    # before the rest is imported: they stay pending until they are asked for
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)

import ctypes  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

# in the environment of a stage: who says why it ended
GUARD = "MINITRAIN_GUARD"
# set by stages/python: its parent, which may be gone before Python has started
STARTED_BY = "MINITRAIN_STARTED_BY"
# DVC sets it for what it runs
DVC_STAGE = "DVC_STAGE"
EXIT_KILLED = 2
TICK_S = 0.5
# to clean up after a signal, before kill -9
GRACE_S = 10.0
# of what a stage left behind: ranks remove their folder when they are alone
ORPHANS_S = 3.0
# SIGSTOP of the stage alone, or the guard; Ctrl-Z and schedulers stop all
STOPPED_S = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def stopped_by(number: int) -> tuple[str, int]:
    """The line and the exit code of a stage that a signal ended as it should."""
    by = signal.Signals(number).name
    line = "interrupted" if number == signal.SIGINT else f"stopped by {by}"
    return line, 128 + number


def say(line: str, code: int) -> int:
    """A line of error, and its ``code``, which stays the same where nobody reads it."""
    # None where it is closed, and print would take stdout for it
    if sys.stderr is not None:
        # a terminal shows Ctrl-C as ^C, and stays in that line
        start = "\n" if code == 128 + signal.SIGINT and sys.stderr.isatty() else ""
        with suppress(OSError):
            print(f"{start}error: {line}", file=sys.stderr, flush=True)
    return code


def _read(pid: int, what: str) -> bytes:
    """/proc/PID/WHAT; nothing where there is no such process, or it has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    """Its fields from the third on: state, parent, group, ..."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def born(pid: int) -> str:
    """When a process began, which tells it from another that gets its number; nothing
    where there is none, or one that has ended and is not yet buried.
    """
    fields = _stat(pid)
    return "" if not fields or fields[0] in "ZX" else fields[19]


def ancestors_up_to_dvc() -> dict[int, str] | None:
    """Those that wait for this process, DVC last, and when they were born; none where
    DVC did not start it, and None where one of them is gone already.

    DVC is the first that is not itself in the stage. It shares a process group with
    what it starts: whoever adopts processes whose parent has gone does not.
    """
    stage = os.environ.get(DVC_STAGE)
    if stage is None:
        return {}
    if os.environ.get(STARTED_BY, str(os.getppid())) != str(os.getppid()):
        return None
    found: dict[int, str] = {}
    mark = f"{DVC_STAGE}={stage}".encode()
    pid, own = os.getppid(), str(os.getpgrp())
    while (fields := _stat(pid))[2:3] == [own]:
        found[pid] = fields[19]
        if mark not in _read(pid, "environ").split(b"\0"):
            return found
        pid = int(fields[1])
    return None


class Guard:
    """Starts a stage and waits for it. ``watched`` are who must not end before it."""

    def __init__(self, command: list[str], watched: dict[int, str]) -> None:
        self.watched = watched
        self.why: tuple[str, int] | None = None
        self.looked_at, self.now = time.monotonic(), 0.0
        self.deadline = float("inf")
        # since when, by process id
        self.stopped: dict[int, float] = {}
        # what the caller ignores stays ignored: nohup, and & in a script
        self.signals = [s for s in STOPS if signal.getsignal(s) != signal.SIG_IGN]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.awaited = [signal.SIGCHLD, *self.signals]
        signal.pthread_sigmask(signal.SIG_BLOCK, self.awaited)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.waker = 0
        self._keep_waker()
        self.pid = self._fork(lambda guard: self._become(command, guard))

    def _fork(self, body: Callable[[int], None]) -> int:
        """A child that ends with this process; ``body`` gets the id of that."""
        guard = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == guard:
                body(guard)
        finally:
            os._exit(EXIT_KILLED)

    def _become(self, command: list[str], guard: int) -> None:
        # the guard passes it on as SIGTERM, at which an import prints no traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*self.awaited, *STOPS})
        os.environ[GUARD] = str(guard)
        os.environ.pop(STARTED_BY, None)
        try:
            os.execv(command[0], command)
        except OSError as error:
            say(f"{command[0]}: {error.strerror}", EXIT_KILLED)

    def _keep_waker(self) -> None:
        if self._is_stopped(self.waker, STOPPED_S):
            os.kill(self.waker, signal.SIGKILL)
        if not self.waker:
            # without memory for it: at the next look
            with suppress(OSError):
                self.waker = self._fork(self._wake)

    def _wake(self, guard: int) -> None:
        """SIGCONT to a guard that was stopped for too long, else DVC waits for ever; at
        once where nobody waits any more.
        """
        # it holds nothing that somebody may wait for: no pipe, no lock
        for one in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                os.close(int(one))
        while True:
            time.sleep(TICK_S)
            self._look_at_clock()
            if self._is_stopped(guard, 0 if self._gone() else STOPPED_S):
                os.kill(guard, signal.SIGCONT)

    def _look_at_clock(self) -> None:
        """``now`` are seconds that pass while this process runs, and not while it is
        stopped, as by Ctrl-Z.
        """
        before, self.looked_at = self.looked_at, time.monotonic()
        self.now += gap if (gap := self.looked_at - before) < 2 * TICK_S else TICK_S

    def _is_stopped(self, pid: int, for_s: float) -> bool:
        """Whether a process has been so for as long as that."""
        if _stat(pid)[:1] != ["T"]:
            self.stopped.pop(pid, None)
            return False
        return self.now - self.stopped.setdefault(pid, self.now) >= for_s

    def wait(self) -> int:
        """The exit code of the stage, after a line where it cannot say one itself."""
        while (status := self._reap()) is None:
            received = signal.sigtimedwait(self.awaited, TICK_S)
            if received and received.si_signo in self.signals:
                self._end(*stopped_by(received.si_signo))
            self._look()
        code = os.waitstatus_to_exitcode(status)
        self._end_orphans()
        if code >= 0 and self.why is None:
            return code
        return say(*(self.why or self._killed_by(-code)))

    def _killed_by(self, number: int) -> tuple[str, int]:
        # a stage that was told to end cleans up, and then dies of that signal
        if number in STOPS:
            return stopped_by(number)
        known = number in [*signal.Signals]
        by = signal.Signals(number).name if known else f"signal {number}"
        line = f"the stage (process {self.pid}) was killed by {by}"
        if number == signal.SIGKILL:
            line += ": by hand, or by the kernel for want of memory"
        return f"{line}; dvc repro starts it again", EXIT_KILLED

    def _reap(self) -> int | None:
        """Bury who has ended; the status of the stage if that is among them."""
        # none at all: there was no memory for a waker
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self.pid:
                    return status
                if pid == self.waker:
                    self.waker = 0
                if not pid:
                    break
        return None

    def _look(self) -> None:
        """After at most TICK_S, for what no signal tells."""
        self._look_at_clock()
        if self.now > self.deadline:
            os.kill(self.pid, signal.SIGKILL)
        self._keep_waker()
        if gone := self._gone():
            line = f"stopped: process {gone[0]}, which waited for it, has ended"
            self._end(line, 128 + signal.SIGHUP)
        if self._is_stopped(self.pid, STOPPED_S):
            line = f"the stage (process {self.pid}) was stopped by a signal and did"
            self._end(f"{line} not go on for {STOPPED_S:g} s", EXIT_KILLED)

    def _gone(self) -> list[int]:
        return [pid for pid, since in self.watched.items() if born(pid) != since]

    def _end(self, line: str, code: int) -> None:
        if self.why is None:
            self.why = line, code
            self.deadline = self.now + GRACE_S
            os.kill(self.pid, signal.SIGTERM)
            # one that is stopped cannot end
            os.kill(self.pid, signal.SIGCONT)

    def _end_orphans(self) -> None:
        """Wait for what the stage left behind; kill it after ORPHANS_S, and what that
        leaves, until there is nobody.
        """
        self._look_at_clock()
        deadline = self.now + ORPHANS_S
        while orphans := _children() - {self.waker}:
            if self.now > deadline:
                kill(orphans)
            time.sleep(0.02)
            self._look_at_clock()
            self._reap()
            # to the very end somebody must be there to wake it
            self._keep_waker()


def kill(children: set[int]) -> None:
    """Kill -9, and of the groups that they lead, as ranks do."""
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)


def _children() -> set[int]:
    me = str(os.getpid())
    pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()]
    return {pid for pid in pids if (_stat(pid) or ["", ""])[1] == me}


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def main() -> int:
    """Run the rest of the command line under guard."""
    watched = ancestors_up_to_dvc()
    if watched is None:
        return say("stopped: what started it has ended", 128 + signal.SIGHUP)
    return Guard([sys.executable, *sys.argv[1:]], watched).wait()


if __name__ == "__main__":
    # a line that nobody could be told must not become Python's own exit code
    os._exit(main())
