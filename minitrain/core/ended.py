"""How a stage ends when it is told to: it cleans up, and then a line says by whom.

Beside it, :mod:`minitrain.core.guard` sees to the ends that nobody can answer.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from minitrain.core.guard import (
    GUARD,
    STOPPED_S,
    ancestors_up_to_dvc,
    kill_children,
    stopped_by,
)

# a rank that a launcher of ours started; the launcher says what became of it
LAUNCHER_PID = "MINITRAIN_LAUNCHER_PID"
STOPS = (signal.SIGTERM, signal.SIGHUP)
POLL_S = 0.5


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
    guarded, doomed = _is_guarded(), threading.Event()
    if guarded:
        watch = threading.Thread(
            target=_watch_guard, args=[doomed], name="guard", daemon=True
        )
        watch.start()
    try:
        yield
    finally:
        # until it goes on, or the thread has ended it, and the kernel this process:
        # nobody hears of this end before. In this order: it is doomed before it ends
        while guarded and (_guard_is_stopped() or doomed.is_set()):
            time.sleep(POLL_S)
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


def _guard_is_stopped() -> bool:
    try:
        stat = Path(f"/proc/{os.environ[GUARD]}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def _watch_guard(doomed: threading.Event) -> None:
    """End the guard once it was stopped for too long: DVC would wait for ever. Wake it
    where DVC has gone, so that it sees that.
    """
    # else this thread may be the one that takes them, and the main one sleeps on
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    guard, watched = int(os.environ[GUARD]), ancestors_up_to_dvc()
    # polls and not a clock: none pass while Ctrl-Z has stopped this process too
    polls = 0
    while polls * POLL_S <= STOPPED_S:
        time.sleep(POLL_S)
        polls = polls + 1 if _guard_is_stopped() else 0
        # None: one of them went while this process started
        if polls and (watched is None or any(one.is_gone() for one in watched)):
            os.kill(guard, signal.SIGCONT)
    line = f"its guard (process {guard}) was stopped for {STOPPED_S:g} s"
    print(f"error: stopped: {line}", file=sys.stderr, flush=True)
    doomed.set()
    # else a rank that was stopped too, before it had tied itself to us, would stay
    kill_children()
    # the kernel then ends this process, as guard.py arranged
    os.kill(guard, signal.SIGKILL)
