"""How a stage ends when it is told to: it cleans up, and then a line says by whom.

Beside it, :mod:`minitrain.core.guard` sees to the ends that nobody can answer.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minitrain.core.guard import GUARD, stopped_by

# a rank that a launcher of ours started; the launcher says what became of it
LAUNCHER_PID = "MINITRAIN_LAUNCHER_PID"
STOPS = (signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """Somebody sent this process the signal ``number``: clean up, and go."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Around a stage: SIGTERM and SIGHUP raise :class:`Stopped` in it, once.

    Not in a rank, which others wait for and which goes at once; and not where the
    caller ignores the signal, as ``nohup`` does.
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
            raise Stopped(number)

    before = {s: signal.getsignal(s) for s in STOPS}
    before = {s: how for s, how in before.items() if how != signal.SIG_IGN}
    for one in before:
        signal.signal(one, stop)
    try:
        yield
    finally:
        # a process that was told to end hears nothing else
        for one, how in before.items() if not stops else ():
            signal.signal(one, how)


def leave(number: int) -> tuple[str, int]:
    """The line and exit code of a stage that ``number`` ended. Under guard it does not
    return: the process dies of that signal, and the guard says who sent what.
    """
    if _is_guarded():
        sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return stopped_by(number)


def _is_guarded() -> bool:
    return os.environ.get(GUARD) == str(os.getppid())
