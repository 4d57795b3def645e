"""End of a stage or a rank: with its parent, or by a signal, after it cleaned up.

Writes are atomic and runs resume to the bit, so kill -9 is safe at any moment. What is
ensured here is that no process outlives the one that waits for it.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# in the environment of a rank: the process that started it, which reports its failures
LAUNCHER_PID = "MINITRAIN_LAUNCHER_PID"
# set by stages/python: process ids of the stage and of its parent
STAGE = "MINITRAIN_STAGE"
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# to clean up after a signal
GRACE_S = 10
EXIT_ORPHAN = 2
PR_SET_PDEATHSIG = 1


class Stopped(KeyboardInterrupt):
    """This process received the signal ``number``: clean up and exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stopped_by(number: int) -> tuple[str, int]:
    """Return line and exit code of a stage that a signal ended."""
    by = signal.Signals(number).name
    line = "interrupted" if number == signal.SIGINT else f"stopped by {by}"
    return line, 128 + number


def say(line: str, code: int) -> int:
    """Print a line of error, if the terminal is still there -> its ``code``."""
    with suppress(OSError):
        print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def end_with_launcher() -> None:
    """Have the kernel kill this rank when its launcher ends, even a rank that is
    stopped or holds the GIL for ever.
    """
    # the launcher may have ended while this process started
    _end_with(int(os.environ.get(LAUNCHER_PID, os.getppid())), signal.SIGKILL)


def begin_stage() -> None:
    """Have the kernel send SIGTERM to this stage when DVC ends, and exit at a signal
    with one line while it imports.
    """
    for number in STOPS:
        # what the caller ignores stays ignored: nohup, and & in a script
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda n, _: os._exit(say(*stopped_by(n))))
    # only DVC is known to wait: from a shell, a stage may outlive it
    if "DVC_STAGE" in os.environ:
        _end_with(int(os.environ[STAGE].split()[1]), signal.SIGTERM)


def _end_with(parent: int, number: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHAN)


@contextmanager
def stoppable() -> Iterator[None]:
    """Have a signal raise :class:`Stopped` in a stage, once; the process
    exits after GRACE_S if it has not cleaned up by then.

    Not in a rank, which exits at once since others wait for it, and not if the caller
    ignores the signal, as ``nohup`` does.
    """
    is_rank = os.environ.get(LAUNCHER_PID) == str(os.getppid())
    if is_rank or threading.current_thread() is not threading.main_thread():
        yield
        return

    stops: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        # the second of two must not end the clean-up
        if len(stops) == 1:
            # its default action ends a process that holds the GIL, too
            signal.alarm(GRACE_S)
            raise Stopped(number)

    before = {s: signal.getsignal(s) for s in STOPS}
    before = {s: how for s, how in before.items() if how != signal.SIG_IGN}
    for one in before:
        signal.signal(one, stop)
    try:
        yield
    finally:
        # a process that was told to end ignores what follows
        if stops:
            signal.alarm(0)
        else:
            for one, how in before.items():
                signal.signal(one, how)
