"""Heartbeat of a rank: its step and phase, in a file that its launcher maps too.

A rank writes one aligned word of eight bytes, so a reader never sees half of a change.
A write takes less than a microsecond. The last word of a rank that hangs, is stopped or
was killed stays readable.
"""

import mmap
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from minitrain.comm.store import our_store

# phases in the order of a run; 4 bits allow sixteen
PHASES = (
    *("start", "setup", "data", "forward", "backward", "reduce", "optimizer"),
    *("record", "checkpoint", "write", "end"),
)
# Least time in seconds to import, join the group and build the model, which can take
# minutes on a busy machine. The limit of waits between steps does not apply to it.
STARTUP_S = 300.0
# phases after the last step
AFTER = PHASES[-2:]

_CODES = {phase: code << 32 for code, phase in enumerate(PHASES)}
# 28 bits of step, 4 of phase, 32 of time in units of 2**20 ns, about a millisecond
_TIME = 0xFFFFFFFF
# a heartbeat has two: the last mark, and the limit of waits in ms
_WORDS = 2


class Seen(NamedTuple):
    """Heartbeat as read: ``step`` and ``phase`` of the rank. ``mark`` differs after a
    later call of :meth:`Heartbeat.mark`, at a resolution of a millisecond; ``limit_s``
    is the longest wait for another rank in seconds (0: unknown).
    """

    step: int
    phase: str
    mark: int
    limit_s: float

    def __str__(self) -> str:
        if self.phase == "start":
            # the process may be one without steps
            return ""
        if self.phase == "setup":
            return "before its first step"
        if self.phase in AFTER:
            return "after its last step"
        return f"at step {self.step}, {self.phase}"


class Heartbeat:
    """Heartbeat of one rank: the rank writes it, its launcher reads it to find hangs.
    ``words``: two 64-bit words of shared memory; None if no other process reads them.
    """

    def __init__(self, words: memoryview | None = None) -> None:
        self._words = words or memoryview(bytearray(8 * _WORDS)).cast("Q")

    def mark(self, step: int, phase: str) -> None:
        """Record that ``phase`` (one of :data:`PHASES`) of ``step`` begins."""
        now = time.monotonic_ns() >> 20 & _TIME
        self._words[0] = step << 36 | _CODES[phase] | now

    def enter(self, phase: str) -> None:
        """Record that ``phase`` begins, in the step that was marked last."""
        self.mark(self._words[0] >> 36, phase)

    def limit(self, seconds: float) -> None:
        """Record the longest wait for another rank; after it a rank counts as hung."""
        self._words[1] = int(seconds * 1000)

    def look(self) -> Seen:
        """Return the heartbeat as last written, in any process that has mapped it."""
        word, limit = self._words
        return Seen(word >> 36, PHASES[word >> 32 & 15], word, limit / 1000)


def make_place(file: Path) -> Heartbeat:
    """Create and return this rank's heartbeat in a new ``file``, in phase ``start``."""
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as opened:
        opened.truncate(8 * _WORDS)
        place = Heartbeat(_map(opened.fileno()))
    place.mark(0, "start")
    return place


def find_place(file: Path) -> Heartbeat | None:
    """Return the heartbeat in ``file``; None if the rank has not created it yet."""
    # mapped, because a read of eight bytes need not be atomic
    with suppress(FileNotFoundError), open(file, "r+b") as opened:
        if os.fstat(opened.fileno()).st_size == 8 * _WORDS:
            return Heartbeat(_map(opened.fileno()))
    return None


def _map(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, 8 * _WORDS)).cast("Q")


def file_of(folder: Path, rank: int | str, kind: str = "place") -> Path:
    """Return the path of a rank's file in the run's ``folder``. ``kind`` is ``place``
    (its heartbeat), ``report`` (its failure) or ``stack``.
    """
    return folder / f"{kind}-{rank}"


def my_heartbeat() -> Heartbeat:
    """Return the heartbeat of this process if a launcher of minitrain started it as a
    rank; otherwise a new heartbeat that no process reads.
    """
    store = our_store()
    found = store and find_place(file_of(store.parent, os.environ.get("RANK", "")))
    return found or Heartbeat()
