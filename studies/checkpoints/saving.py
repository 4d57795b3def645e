"""Arm that saves checkpoints while it trains."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minitrain.bench.arms import Arm, Contestant
from minitrain.core.params import Params
from minitrain.train.checkpoint import Kept

# saves a rank's state after a number of steps; returns a pending save, if any
Save = Callable[[int, Kept], Future[Any] | None]


@dataclass(frozen=True)
class Saves(Arm):
    """Saves after the first timed step and then every ``every`` steps with the function
    that ``start`` returns; ``seen`` returns the evidence to store.
    """

    every: int = 1
    start: Callable[[], Save] | None = None
    seen: Callable[[], str] = str

    def enter(
        self, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> Contestant:
        return Saving(self, params, shards, group)


class Saving(Contestant):
    """Contestant that saves; ``took_ms``: how long training waited for each save."""

    def __init__(self, arm: Saves, *rest: Any) -> None:
        super().__init__(arm, *rest)
        assert arm.start
        self._every, self._save, self._seen = arm.every, arm.start(), arm.seen
        self._saved = 0
        self.took_ms: list[float] = []

    def train(self, steps: Iterable[int]) -> None:
        under_way = None
        # the first step of a turn runs separately and is not timed
        for number, step in enumerate(listed := [*steps]):
            super().train([step])
            if len(listed) == 1 or number % self._every:
                continue
            start = time.perf_counter_ns()
            wait_for(under_way)
            self._saved += 1
            kept = {**self.worker.kept(), "seen": self._seen()}
            under_way = self._save(self._saved, kept)
            self.took_ms.append((time.perf_counter_ns() - start) / 1e6)
        wait_for(under_way)


def wait_for(under_way: Future[Any] | None) -> None:
    if under_way is not None:
        under_way.result()
