"""Termination of stages and ranks: cleanup on a signal, exit with the parent.

Since writes are atomic and resume is bit-exact, kill -9 is always safe. This module
ensures that no process outlives its parent.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# environment variable of a rank: pid of the launcher, which reports its failures
LAUNCHER_PID = "MINITRAIN_LAUNCHER_PID"
# environment variable set by stages/python: pids of the stage and of its parent
STAGE = "MINITRAIN_STAGE"
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# seconds for cleanup after a signal
GRACE_S = 10
EXIT_ORPHAN = 2
PR_SET_PDEATHSIG = 1


class Stopped(KeyboardInterrupt):
    """Raised when this process receives signal ``number``; clean up and exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stopped_by(number: int) -> tuple[str, int]:
    """Return message and exit code for a stage that signal ``number`` terminated."""
    by = signal.Signals(number).name
    line = "interrupted" if number == signal.SIGINT else f"stopped by {by}"
    return line, 128 + number


def say(line: str, code: int) -> int:
    """Print ``line`` as an error on stderr, if it can be written; return ``code``."""
    with suppress(OSError):
        print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def end_with_launcher() -> None:
    """Have the kernel kill this rank when its launcher exits, even if the rank is
    stopped or never releases the GIL.
    """
    # the launcher may have exited while this process started
    _end_with(int(os.environ.get(LAUNCHER_PID, os.getppid())), signal.SIGKILL)


def begin_stage() -> None:
    """Have the kernel send SIGTERM to this stage when DVC exits. Until
    :func:`stoppable` takes over, signals print one line and exit the process.
    """
    for number in STOPS:
        # signals that the caller ignores stay ignored: nohup, or & in a script
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda n, _: os._exit(say(*stopped_by(n))))
    # a stage started from a shell may outlive it
    if "DVC_STAGE" in os.environ:
        _end_with(int(os.environ[STAGE].split()[1]), signal.SIGTERM)


def _end_with(parent: int, number: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHAN)


@contextmanager
def stoppable() -> Iterator[None]:
    """Context manager for the body of a stage: raise :class:`Stopped` on the first
    SIGTERM, SIGHUP or SIGINT; the process is killed if cleanup exceeds GRACE_S seconds.

    Has no effect in a rank, which exits immediately since other ranks wait for it, and
    for signals that the caller ignores, as with ``nohup``.
    """
    is_rank = os.environ.get(LAUNCHER_PID) == str(os.getppid())
    if is_rank or threading.current_thread() is not threading.main_thread():
        yield
        return

    stops: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        # a second signal must not interrupt cleanup
        if len(stops) == 1:
            # the default action of SIGALRM also kills a process that holds the GIL
            signal.alarm(GRACE_S)
            raise Stopped(number)

    caught = [one for one in STOPS if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, stop) for one in caught}
    try:
        yield
    finally:
        # after the first signal the handlers stay, and ignore further ones
        if stops:
            signal.alarm(0)
        else:
            for one, how in before.items():
                signal.signal(one, how)
