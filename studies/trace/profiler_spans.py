"""Steps and their phases as spans of torch's profiler, and what they say of its clock.

The profiler has a clock of its own, buckets are stamped with ``time.perf_counter_ns``,
which the processes of a host share. Every span of ours begins and ends between two
readings of that: so it is known how far apart the clocks are, and how well.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.profiler import record_function

from minitrain.data.batches import MicroBatch
from minitrain.sync.strategy import BucketEvent
from minitrain.train.observer import Observer
from minitrain.train.worker import Worker

# of our spans among the profiler's: a model may have spans of its own
PREFIX = "minitrain: "


@dataclass
class Mark:
    """A span of ours: what our clock said before and after each of its ends."""

    name: str
    began: tuple[int, int]
    ended: tuple[int, int] = (0, 0)


class PhaseMarks(Observer):
    """Names steps and phases for the profiler, and keeps the buckets of each step.

    A step is ``step N``; within it ``data``, then for each micro-batch ``forward``,
    ``backward`` and ``reduce``, then ``optimizer``. ``marks`` has all of them in the
    order in which they began; ``last_gradients``, by step, from when on nothing hides
    communication.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.marks: list[Mark] = []
        self.buckets: dict[int, list[BucketEvent]] = {}
        self.last_gradients: dict[int, int] = {}
        self._open: list[tuple[record_function, Mark]] = []
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step
        self._begin(f"step {step}")
        self._begin("data")

    def after_data(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._end()

    def before_forward(self) -> None:
        # between two micro-batches a strategy may add up gradients
        if self._open[-1][1].name == "reduce":
            self._end()
        self._begin("forward")

    def after_forward(self, loss: Tensor) -> None:
        self._end()
        self._begin("backward")

    def after_backward(self) -> None:
        self._end()
        self._begin("reduce")

    def after_reduce(self) -> None:
        self._end()
        self._begin("optimizer")

    def after_step(self) -> None:
        self._end()
        self._end()
        trace = self.worker.sync.trace
        # the next step clears the list
        self.buckets[self._step] = list(trace.events)
        if trace.computed_ns is not None:
            self.last_gradients[self._step] = trace.computed_ns

    def _begin(self, name: str) -> None:
        span = record_function(PREFIX + name)
        before = time.perf_counter_ns()
        span.__enter__()
        mark = Mark(name, (before, time.perf_counter_ns()))
        self.marks.append(mark)
        self._open.append((span, mark))

    def _end(self) -> None:
        span, mark = self._open.pop()
        before = time.perf_counter_ns()
        span.__exit__(None, None, None)
        mark.ended = (before, time.perf_counter_ns())


class Readings(NamedTuple):
    """A moment of the profiler's clock, between two readings of ours (nanoseconds)."""

    profiler_ns: int
    before_ns: int
    after_ns: int


class Offset(NamedTuple):
    """What to add to the profiler's time to have ours, and how far that may be from the
    truth, in nanoseconds.
    """

    ns: int
    within_ns: int


def offset_of(readings: Iterable[Readings]) -> Offset:
    """The offset by which every moment comes to lie between its two readings.

    All such offsets make an interval: it is the middle, known to within half the
    length. Clocks that go at unlike speeds may leave none: then half of what is missing
    is how far off it is.
    """
    found = list(readings)
    lowest = max(one.before_ns - one.profiler_ns for one in found)
    highest = min(one.after_ns - one.profiler_ns for one in found)
    return Offset((lowest + highest) // 2, -(-abs(highest - lowest) // 2))
