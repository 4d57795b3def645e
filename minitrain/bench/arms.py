"""Interleaved timing of arms (configurations) in one set of processes.

The speed of a machine drifts, so only interleaved measurements are compared: in each
round every arm trains a few steps while the ranks that it does not use sleep. Every
second round runs in reverse order, which gives one arm two turns in a row; the first
arm changes every two rounds, so that it is not always the same one.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm.groups import group_timeout_s
from minitrain.core.arms import Kind, baseline_arms
from minitrain.core.params import Params
from minitrain.core.provenance import usable_cores
from minitrain.sync.catalog import PLAIN
from minitrain.sync.strategy import world
from minitrain.train.config import config_of
from minitrain.train.observer import Observer, StepObserver
from minitrain.train.worker import Worker

Row = dict[str, Any]
# changes of an arm without communication: an upper bound of speed (the ceiling)
WITHOUT_SYNC = (("sync", PLAIN),)


@dataclass(frozen=True)
class Arm:
    """Timed configuration. All arms train the same global batches, each with its
    ``changes`` to section ``train`` of params.yaml, on ``threads`` per process.
    ``timed``: with the strategy's timing of buckets; ``stamped``: with the step clock.
    """

    name: str
    processes: int
    threads: int
    changes: tuple[tuple[str, Any], ...] = ()
    timed: bool = False
    stamped: bool = False

    def params(self, params: Params) -> Params:
        """Return ``params`` with the changes of this arm."""
        return params.with_train(**dict(self.changes))

    def enter(
        self, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> "Contestant":
        """Return this arm's trainer; call it on each rank of ``group``. ``shards`` is a
        folder world-W, written for the world size of the arm.
        """
        return Contestant(self, self.params(params), shards, group)


def arms_of(params: Params) -> list[Arm]:
    """Return the baseline stage's arms for ``params``, in the order of first turns."""
    threads = params.train.threads_per_process
    return [
        Arm(
            arm.name,
            arm.processes,
            usable_cores() if arm.kind is Kind.ALL_CORES else threads,
            () if arm.kind is Kind.SYNC else WITHOUT_SYNC,
            timed=arm.timed,
            stamped=arm.timed,
        )
        for arm in baseline_arms(params.gloo.world_sizes)
    ]


class Contestant:
    """Trainer of one arm on one rank: trains its own model and is timed in turns.
    Subclasses may override :meth:`train`, or wrap the model differently.
    """

    def __init__(
        self, arm: Arm, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> None:
        self.arm, self.group, self.next_step = arm, group, 0
        config = config_of(params, shards, arm.processes)
        # times steps like the training stage, without hashing them
        stamps: Any = partial(StepObserver, records=False)
        observer = stamps if arm.stamped else Observer
        self.worker = Worker(config, group=group, timed=arm.timed, observer=observer)

    def train(self, steps: Iterable[int]) -> None:
        """Run these training ``steps``. Collective over the arm's group."""
        self.worker.train(steps)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the full state of the unwrapped model. Collective."""
        return self.worker.sync.state_dict()

    def close(self) -> None:
        """Release resources that outlive the process group. Collective."""
        self.worker.close()

    def take_turn(self, num_steps: int) -> tuple[float, int]:
        """Train one untimed step and ``num_steps`` timed ones; return the seconds of
        the latter and the target tokens of their global batches. Collective over the
        arm's group. Raises UserError if the last loss is not finite.
        """
        torch.set_num_threads(self.arm.threads)
        first = self.next_step
        self.next_step += 1 + num_steps
        self.train(range(first, first + 1))
        dist.barrier(self.group)
        start = time.perf_counter_ns()
        self.train(range(first + 1, self.next_step))
        dist.barrier(self.group)
        seconds = (time.perf_counter_ns() - start) / 1e9
        # raises UserError for a loss that is not finite
        self.worker.observer.shares()
        steps = range(first + 1, self.next_step)
        tokens = sum(
            self.worker.batches.micro_batches(s)[0].global_targets for s in steps
        )
        return seconds, tokens


def measure(
    params: Params, shards: Path, rounds: Iterable[int], arms: Sequence[Arm]
) -> list[Row]:
    """Time all ``arms``, interleaved, in each of ``rounds``; call it on every rank of a
    group that spans the largest arm. ``shards`` has a folder world-W per world size.
    Returns a row per round and arm with this rank (rank 0: all): ``round``, ``arm``,
    ``processes``, ``threads``, ``world_size``, ``tokens``, ``seconds``.
    """
    contestants = enter(params, shards, arms)
    rows = take_turns(contestants, rounds, params.baseline.steps_per_round)
    close(contestants)
    return rows


def enter(params: Params, shards: Path, arms: Sequence[Arm]) -> list[Contestant | None]:
    """Return this rank's trainer for each arm; None if not in the arm. Collective."""
    contestants: list[Contestant | None] = []
    # shared among arms: threads of gloo wake now and then, even if their group is idle
    groups = {dist.get_world_size(): world()}
    for arm in arms:
        ranks = list(range(arm.processes))
        if arm.processes not in groups:
            limit = timedelta(seconds=group_timeout_s())
            groups[arm.processes] = dist.new_group(ranks, timeout=limit)
        if dist.get_rank() in ranks:
            folder = shards / f"world-{arm.processes}"
            contestants.append(arm.enter(params, folder, groups[arm.processes]))
        else:
            contestants.append(None)
    return contestants


def take_turns(
    contestants: Sequence[Contestant | None], rounds: Iterable[int], num_steps: int
) -> list[Row]:
    """Run ``rounds`` of :func:`measure`, ``num_steps`` timed steps each. Collective."""
    rows: list[Row] = []
    for number in rounds:
        first = number // 2 % len(contestants)
        order = [*contestants[first:], *contestants[:first]]
        for contestant in order if number % 2 == 0 else reversed(order):
            dist.barrier()
            if contestant is None:
                continue
            arm = contestant.arm
            seconds, tokens = contestant.take_turn(num_steps)
            rows.append(
                {
                    "round": number,
                    "arm": arm.name,
                    "processes": arm.processes,
                    "threads": arm.threads,
                    "world_size": arm.processes,
                    "tokens": tokens,
                    "seconds": seconds,
                }
            )
    return rows


def close(contestants: Iterable[Contestant | None]) -> None:
    """Release the resources of all ``contestants``. Collective."""
    for contestant in contestants:
        if contestant is not None:
            contestant.close()
