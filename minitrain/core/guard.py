"""The guard of a stage: it ends with the DVC that runs it, and nobody outlives it.

    python -I -S minitrain/core/guard.py SCRIPT ...

``stages/python`` starts a stage so, on Linux. The guard is small and imports nothing of
ours, so that it is there at once and answers while the stage imports torch. It

- ends the stage when it is told to (SIGTERM, SIGHUP, SIGINT, SIGQUIT), and when DVC,
  or a shell between DVC and itself, is gone, by kill -9 too;
- ends a stage that was stopped (SIGSTOP) alone, for which DVC would wait for ever;
- says in one line which process was killed by which signal;
- adopts what the stage leaves behind, and ends that.

When the guard itself is killed, the kernel kills the stage. DVC ignores SIGINT as long
as a stage runs: Ctrl-C reaches the stage because a terminal sends it to everybody.
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
# SIGSTOP of the stage alone; Ctrl-Z and schedulers stop the guard with it
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
        prctl = _prctl()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        guard = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._become(command, guard, prctl)

    def _become(
        self, command: list[str], guard: int, prctl: Callable[[int, int], int]
    ) -> None:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(EXIT_KILLED)
            # the guard passes it on as SIGTERM, at which an import prints no traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.awaited)
            os.environ[GUARD] = str(guard)
            os.environ.pop(STARTED_BY, None)
            os.execv(command[0], command)
        finally:
            os._exit(EXIT_KILLED)

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
        end_children(ORPHANS_S)
        if code >= 0 and self.why is None:
            return code
        line, code = self.why or self._killed_by(-code)
        print(f"error: {line}", file=sys.stderr, flush=True)
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
            if pid == self.pid:
                if not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
                    return status
                self.ticks_stopped = 0 if os.WIFSTOPPED(status) else None
            if not pid:
                return None

    def _tick(self) -> None:
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


def end_children(within_s: float) -> None:
    """Wait for all child processes; kill those that are there after ``within_s``, and
    their children, until there are none.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if time.monotonic() > deadline:
            kill_children()
        time.sleep(0.02)


def kill_children() -> None:
    """Kill -9 of what this process started, or adopted; of the group that one of them
    leads, as ranks do, too.
    """
    for child in _children():
        # another thread may bury it meanwhile
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)


def _children() -> list[int]:
    me = str(os.getpid())
    pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()]
    return [pid for pid in pids if (_stat(pid) or ["", ""])[1] == me]


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
