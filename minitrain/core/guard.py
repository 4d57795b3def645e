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

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# in the environment of a stage: who says why it ended
GUARD = "MINITRAIN_GUARD"
# set by stages/python: its parent, which may be gone before Python has started
STARTED_BY = "MINITRAIN_STARTED_BY"
# DVC sets it for what it runs
DVC_STAGE = "DVC_STAGE"
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
EXIT_KILLED = 2
TICK_S = 0.5
# to clean up after a signal, before kill -9
GRACE_S = 10.0
# of what a stage left behind: ranks remove their folder when they are alone
ORPHANS_S = 3.0
# SIGSTOP of the stage alone, or the guard; Ctrl-Z and schedulers stop all
STOPPED_S = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def name_of(number: int) -> str:
    """``SIGTERM`` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stopped_by(number: int) -> tuple[str, int]:
    """The line and the exit code of a stage that a signal ended as it should."""
    line = "interrupted" if number == signal.SIGINT else f"stopped by {name_of(number)}"
    return line, 128 + number


def after_echo(code: int) -> str:
    """What ends the line in which a terminal shows Ctrl-C as ^C."""
    return "\n" if code == 128 + signal.SIGINT and sys.stderr.isatty() else ""


@dataclass(frozen=True)
class Process:
    """One process and not its number alone, which another may get later."""

    pid: int
    since: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """None where there is none, or one that has ended and is not yet buried."""
        fields = _stat(pid)
        return None if not fields or fields[0] in "ZX" else cls(pid, fields[19])

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return Process.of(self.pid) != self


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: state, parent, group, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _stage_of(pid: int) -> bytes | None:
    """The DVC stage that a process belongs to."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    mark = f"{DVC_STAGE}=".encode()
    return next((v for v in variables if v.startswith(mark)), None)


def ancestors_up_to_dvc() -> list[Process] | None:
    """Those that wait for this process, DVC last; none where DVC did not start it, and
    None where one of them is gone already.

    DVC is the first that is not itself in the stage. It shares a process group with
    what it starts: whoever adopts processes whose parent has gone does not.
    """
    stage = os.environ.get(DVC_STAGE)
    if stage is None:
        return []
    if os.environ.get(STARTED_BY, str(os.getppid())) != str(os.getppid()):
        return None
    found, pid, own = [], os.getppid(), str(os.getpgrp())
    while one := Process.of(pid):
        fields = _stat(pid)
        if not fields or fields[2] != own:
            break
        found.append(one)
        if _stage_of(pid) != f"{DVC_STAGE}={stage}".encode():
            return found
        pid = int(fields[1])
    return None


class Guard:
    """Starts a stage and waits for it. ``watched`` are who must not end before it."""

    def __init__(self, command: list[str], watched: list[Process]) -> None:
        self.watched = watched
        self.why: tuple[str, int] | None = None
        self.deadline = float("inf")
        self.ticks_stopped: int | None = None
        # what the caller ignores stays ignored: nohup, and & in a script
        self.signals = [s for s in STOPS if signal.getsignal(s) != signal.SIG_IGN]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.awaited = [signal.SIGCHLD, *self.signals]
        # they stay pending until they are asked for
        signal.pthread_sigmask(signal.SIG_BLOCK, self.awaited)
        self.prctl = _prctl()
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.waker = self._fork(self._wake)
        self.pid = self._fork(lambda guard: self._become(command, guard))

    def _fork(self, body: Callable[[int], None]) -> int:
        """A child that ends with this process; ``body`` gets the id of that."""
        guard = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == guard:
                body(guard)
        finally:
            os._exit(EXIT_KILLED)

    def _become(self, command: list[str], guard: int) -> None:
        # the guard passes it on as SIGTERM, at which an import prints no traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.awaited)
        os.environ[GUARD] = str(guard)
        os.environ.pop(STARTED_BY, None)
        os.execv(command[0], command)

    def _wake(self, guard: int) -> None:
        """SIGCONT to a guard that was stopped for too long, else DVC waits for ever; at
        once where nobody waits any more.
        """
        # ticks and not a clock: none pass while this process is stopped too
        ticks = 0
        while True:
            time.sleep(TICK_S)
            ticks = ticks + 1 if _stat(guard)[:1] == ["T"] else 0
            is_alone = any(process.is_gone() for process in self.watched)
            if ticks * TICK_S > STOPPED_S or (ticks and is_alone):
                os.kill(guard, signal.SIGCONT)

    def wait(self) -> int:
        """The exit code of the stage, after a line where it cannot say one itself."""
        while (status := self._reap()) is None:
            received = signal.sigtimedwait(self.awaited, TICK_S)
            if received is None:
                self._tick()
            elif received.si_signo in self.signals:
                self._end(*stopped_by(received.si_signo))
            if time.monotonic() > self.deadline:
                os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        # to the very end somebody must be there to wake it
        end_children(ORPHANS_S, but=self.waker)
        if code >= 0 and self.why is None:
            return code
        line, code = self.why or self._killed_by(-code)
        print(f"{after_echo(code)}error: {line}", file=sys.stderr, flush=True)
        return code

    def _killed_by(self, number: int) -> tuple[str, int]:
        # a stage that was told to end cleans up, and then dies of that signal
        if number in STOPS:
            return stopped_by(number)
        line = f"the stage (process {self.pid}) was killed by {name_of(number)}"
        if number == signal.SIGKILL:
            line += ": by hand, or by the kernel for want of memory"
        return f"{line}; dvc repro starts it again", EXIT_KILLED

    def _reap(self) -> int | None:
        """Bury who has ended; the status of the stage if that is among them."""
        while True:
            how = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
            pid, status = os.waitpid(-1, how)
            if not pid:
                return None
            has_ended = os.WIFEXITED(status) or os.WIFSIGNALED(status)
            if pid == self.pid and has_ended:
                return status
            if pid == self.pid:
                self.ticks_stopped = 0 if os.WIFSTOPPED(status) else None
            if pid == self.waker and has_ended:
                self.waker = 0

    def _tick(self) -> None:
        if not self.waker:
            self.waker = self._fork(self._wake)
        for process in self.watched:
            if process.is_gone():
                line = f"stopped: process {process.pid}, which waited for it, has ended"
                return self._end(line, 128 + signal.SIGHUP)
        if self.ticks_stopped is not None:
            # ticks and not a clock: while the guard is stopped too, none pass
            self.ticks_stopped += 1
            if self.ticks_stopped * TICK_S > STOPPED_S:
                line = f"the stage (process {self.pid}) was stopped by a signal and did"
                self._end(f"{line} not go on for {STOPPED_S:g} s", EXIT_KILLED)

    def _end(self, line: str, code: int) -> None:
        if self.why is None:
            self.why = line, code
            self.deadline = time.monotonic() + GRACE_S
            os.kill(self.pid, signal.SIGTERM)
            # one that is stopped cannot end
            os.kill(self.pid, signal.SIGCONT)


def end_children(within_s: float, but: int) -> None:
    """Wait for all child processes ``but`` one; kill those that are there after
    ``within_s``, and their children, until there are none.
    """
    deadline = time.monotonic() + within_s
    while children := _children() - {but}:
        if time.monotonic() > deadline:
            kill(children)
        for child in children:
            # one that was killed while it was looked at is buried in the next round
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)


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


def _prctl() -> Callable[[int, int], int]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, value: int) -> int:
        return int(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))

    return prctl


def main() -> int:
    """Run the rest of the command line under guard."""
    watched = ancestors_up_to_dvc()
    if watched is None:
        print("error: stopped: what started it has ended", file=sys.stderr)
        return 128 + signal.SIGHUP
    return Guard([sys.executable, *sys.argv[1:]], watched).wait()


if __name__ == "__main__":
    sys.exit(main())
