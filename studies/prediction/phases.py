"""Seconds of each phase of a step, from five clock readings per step."""

import time
from collections.abc import Sequence

from torch import Tensor

from minitrain.data.batches import MicroBatch
from minitrain.train.observer import Observer
from minitrain.train.worker import Worker

PHASES = ("data", "forward", "backward", "optimizer")


class Phases(Observer):
    """Seconds of each phase of each step, in the order of :data:`PHASES`; communication
    within or after backward counts as backward.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.steps: list[list[float]] = []
        self._since = 0.0

    def begin(self, step: int) -> None:
        self.steps.append([0.0] * len(PHASES))
        self._since = time.perf_counter()

    def _end(self, phase: str) -> None:
        now = time.perf_counter()
        self.steps[-1][PHASES.index(phase)] += now - self._since
        self._since = now

    def after_data(self, micro_batches: Sequence[MicroBatch]) -> None:
        super().after_data(micro_batches)
        self._end("data")

    def after_forward(self, loss: Tensor) -> None:
        super().after_forward(loss)
        self._end("forward")

    def after_backward(self) -> None:
        self._end("backward")

    def after_reduce(self) -> None:
        self._end("backward")

    def after_step(self) -> None:
        self._end("optimizer")
