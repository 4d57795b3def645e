"""Steps and phases as spans of torch's profiler, for the alignment of its clock.

The profiler has a different clock than buckets, which are stamped with
``time.perf_counter_ns``, shared by the processes of a host. Every span of ours starts
and ends between two readings of the latter, which bounds the offset between the clocks.
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

# prefix of our span names, since a model may have spans, too
PREFIX = "minitrain: "


@dataclass
class Mark:
    """Span of ours: readings of our clock before and after each of its ends."""

    name: str
    began: tuple[int, int]
    ended: tuple[int, int] = (0, 0)


class PhaseMarks(Observer):
    """Observer that names steps and phases for the profiler, and collects the buckets
    of each step.

    A step is ``step N``; within it ``data``, then for each micro-batch ``forward``,
    ``backward`` and ``reduce``, then ``optimizer``. ``marks`` has all of them in order
    of their start; ``last_gradients``, by step, is the time from which communication is
    exposed.
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
        # a strategy may add gradients between two micro-batches
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
        # copied, since the next step clears the list
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
    """Time on the profiler's clock, between two readings of ours (nanoseconds)."""

    profiler_ns: int
    before_ns: int
    after_ns: int


class Offset(NamedTuple):
    """Offset from the profiler's clock to ours, and its uncertainty, in nanoseconds."""

    ns: int
    within_ns: int


def offset_of(readings: Iterable[Readings]) -> Offset:
    """Estimate the offset for which every reading of the profiler lies between its two
    readings of our clock.

    Such offsets form an interval; returns its middle, with half of its length as the
    uncertainty. If clock drift leaves the interval empty, the uncertainty is half of
    the gap.
    """
    found = list(readings)
    lowest = max(one.before_ns - one.profiler_ns for one in found)
    highest = min(one.after_ns - one.profiler_ns for one in found)
    return Offset((lowest + highest) // 2, -(-abs(highest - lowest) // 2))
