"""A typical DDP loop, with or without the recorder."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import minitrain
from minitrain.bench.arms import Arm, Contestant, Row
from minitrain.core.params import Params
from minitrain.sync.catalog import PLAIN

# beyond the last step of any run in this study
NEVER = 10**9
# every recorder records the first steps, so run them before timing
FIRST = 3


@dataclass(frozen=True)
class Recorded(Arm):
    """The loop, recorded every ``every`` steps, or not at all if 0."""

    every: int = 0
    folder: Path = Path()

    def enter(
        self, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> "HandWritten":
        return HandWritten(self, params, shards, group)


class HandWritten(Contestant):
    """Forward, loss, backward, step, zero_grad."""

    def __init__(
        self, arm: Recorded, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> None:
        super().__init__(arm, params.with_train(sync=PLAIN), shards, group)
        self.optimizer = self.worker.optimizer
        self.wrapped = DistributedDataParallel(self.worker.model)
        # real targets and seconds of each step
        self.took: list[tuple[int, float]] = []
        self.recorder = None
        if arm.every:
            self.recorder = minitrain.record(
                self.wrapped,
                self.optimizer,
                arm.folder / arm.name,
                every=arm.every,
            )
            self.recorder.start()
        self.train(range(FIRST))
        self.next_step = FIRST

    def train(self, steps: Iterable[int]) -> None:
        world_size = dist.get_world_size()
        for step in steps:
            start = time.perf_counter_ns()
            (batch,) = self.worker.batches.micro_batches(step)
            loss = self.wrapped(**batch.inputs).loss
            # DDP averages over ranks, so scale to the mean over all real targets
            share = batch.num_targets * world_size / batch.global_targets
            (loss * share).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            seconds = round((time.perf_counter_ns() - start) / 1e9, 6)
            self.took.append((batch.global_targets, seconds))

    def steps(self, per_turn: int) -> Iterator[Row]:
        """Return each timed and unrecorded step as a separate round, which shows small
        differences that are lost in the sum of a turn.
        """
        arm = self.arm
        if isinstance(arm, Recorded) and arm.every not in (0, NEVER):
            return
        about = {"arm": arm.name, "processes": arm.processes, "threads": arm.threads}
        for number, (tokens, seconds) in enumerate(self.took[FIRST:]):
            # the first of a turn is not timed
            if number % (1 + per_turn):
                row = {"round": number, **about, "world_size": arm.processes}
                yield row | {"tokens": tokens, "seconds": seconds}

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.stop()
        super().close()
