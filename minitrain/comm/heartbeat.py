"""Heartbeat of a rank: its step and phase, in a few bytes that its launcher maps too.

A rank writes one aligned word of eight bytes, so a reader never sees half of a change.
It costs less than a microsecond, and the last word of a rank that hangs, is stopped or
has been killed is still there.
"""

import mmap
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from minitrain.comm.store import our_store

# in the order of a run; up to sixteen
PHASES = (
    "start",
    "setup",
    "data",
    "forward",
    "backward",
    "reduce",
    "optimizer",
    "record",
    "checkpoint",
    "write",
    "end",
)
# Seconds that ranks have at least to import, to meet and to build the model; a busy
# machine takes minutes for it. The limit of waits between steps has no part in this.
STARTUP_S = 300.0
# all steps of the loop are over
AFTER = PHASES[-2:]

_CODES = {phase: code << 32 for code, phase in enumerate(PHASES)}
# 28 bits of step, 4 of phase, 32 of time in units of 2**20 ns, about a millisecond
_TIME = 0xFFFFFFFF
# the mark, and the limit
_WORDS = 2


class Seen(NamedTuple):
    """A heartbeat as read: ``mark`` differs after each call of :meth:`Heartbeat.mark`,
    a millisecond or more apart; ``limit_s`` is how long the rank may wait for another
    (0: not known).
    """

    step: int
    phase: str
    mark: int
    limit_s: float

    def __str__(self) -> str:
        if self.phase == "start":
            # it may have no steps
            return ""
        if self.phase == "setup":
            return "before its first step"
        if self.phase in AFTER:
            return "after its last step"
        return f"at step {self.step}, {self.phase}"


class Heartbeat:
    """The heartbeat of one rank; without ``words``, one that has no reader."""

    def __init__(self, words: memoryview | None = None) -> None:
        self._words = words or memoryview(bytearray(8 * _WORDS)).cast("Q")

    def mark(self, step: int, phase: str) -> None:
        """This rank is in ``phase`` (one of :data:`PHASES`) of ``step`` from now on."""
        now = time.monotonic_ns() >> 20 & _TIME
        self._words[0] = step << 36 | _CODES[phase] | now

    def enter(self, phase: str) -> None:
        """Mark ``phase`` of the step that was marked last."""
        self.mark(self._words[0] >> 36, phase)

    def limit(self, seconds: float) -> None:
        """This rank may wait so long for another one."""
        self._words[1] = int(seconds * 1000)

    def look(self) -> Seen:
        """Return the last mark."""
        word, limit = self._words
        return Seen(word >> 36, PHASES[word >> 32 & 15], word, limit / 1000)


def make_place(file: Path) -> Heartbeat:
    """Make the heartbeat of this rank, at its start, in a new ``file``."""
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as opened:
        opened.truncate(8 * _WORDS)
        place = Heartbeat(_map(opened.fileno()))
    place.mark(0, "start")
    return place


def find_place(file: Path) -> Heartbeat | None:
    """The heartbeat in ``file``; None as long as its rank has not made it."""
    # mapped and not read: only so are eight bytes one
    with suppress(FileNotFoundError), open(file, "r+b") as opened:
        if os.fstat(opened.fileno()).st_size == 8 * _WORDS:
            return Heartbeat(_map(opened.fileno()))
    return None


def _map(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, 8 * _WORDS)).cast("Q")


def file_of(folder: Path, rank: int | str, kind: str = "place") -> Path:
    """File of the heartbeat of ``rank``, or of another ``kind``, in its folder."""
    return folder / f"{kind}-{rank}"


def my_heartbeat() -> Heartbeat:
    """The heartbeat of this process, if one of our launchers started it as a rank; else
    one that has no reader.
    """
    store = our_store()
    found = store and find_place(file_of(store.parent, os.environ.get("RANK", "")))
    return found or Heartbeat()
