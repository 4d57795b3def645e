"""The arms of the speed comparison, taking turns in one set of processes.

Speeds of a machine drift, so only what was measured side by side is compared: in each
round every arm trains a few steps, while ranks that it does not need wait without using
a core. Every second round goes backwards. Where rounds turn round one arm has two turns
in a row; each two rounds begin with another arm, so that it is not always the same.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.core.params import Params
from minitrain.core.provenance import usable_cores
from minitrain.sync.catalog import PLAIN, find_strategy
from minitrain.sync.strategy import timeout_s, world
from minitrain.train.clock import StepClock, always_plain
from minitrain.train.loop import OPTIMIZERS, train
from minitrain.train.precision import make_precision
from minitrain.train.recorder import Recorder
from minitrain.train.run import rank_batches, rank_streams, start_model

Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One way to train the same global batch: ``changes`` to ``train`` of params.yaml.

    ``timed``: with what the training stage uses to watch buckets.
    """

    name: str
    processes: int
    threads: int
    changes: tuple[tuple[str, Any], ...] = ()
    timed: bool = False

    def params(self, params: Params) -> Params:
        """``params`` with the changes of this arm."""
        return params.with_train(**dict(self.changes))

    def enter(
        self, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> "Contestant":
        """Make ready to take turns, on one rank of ``group``."""
        return _OwnLoop(self, self.params(params), shards, group)


def silent_arm(name: str, processes: int, threads: int) -> Arm:
    """Processes that train alone, each on its part of the batch: the ceiling."""
    return Arm(name, processes, threads, (("sync", PLAIN),))


def only_ddp(params: Params) -> Params:
    """``params`` that train with stock DDP and nothing else: what studies begin with,
    whatever params.yaml says.
    """
    return params.with_train(
        sync="ddp",
        grad_accumulation_steps=1,
        precision="float32",
        bucket_cap_mb=None,
        overlap=True,
        find_unused_parameters=False,
    )


def arms_of(params: Params) -> list[Arm]:
    """The arms that ``params`` ask for, some with a twin for the noise floor (A/A): the
    largest world size, the same in silence, and one process.
    """
    threads = params.train.threads_per_process
    sizes = [size for size in sorted(params.gloo.world_sizes) if size > 1] or [1]
    arms = [
        silent_arm("one_process", 1, threads),
        silent_arm("one_process_all_cores", 1, usable_cores()),
    ]
    for size in sizes:
        arms.append(Arm(f"gloo-{size}", size, threads))
        if size > 1:
            arms.append(silent_arm(f"gloo-{size}-silent", size, threads))
    largest = sizes[-1]
    twins = ("one_process", f"gloo-{largest}", f"gloo-{largest}-silent")
    return [
        *arms,
        Arm(f"gloo-{largest}-timed", largest, threads, timed=True),
        *(replace(a, name=f"{a.name}-again") for a in arms if a.name in twins),
    ]


class Contestant:
    """An arm with a model and batches of its own, on one of its ranks.

    A subclass brings the loop, and whatever wraps ``model``.
    """

    def __init__(
        self, arm: Arm, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> None:
        rank = dist.get_rank(group)
        self.arm, self.group, self.next_step = arm, group, 0
        self.model = start_model(params, rank)
        self.batches = rank_batches(params, shards, rank, arm.processes)

    def train(self, steps: Iterable[int]) -> None:
        """Train ``model`` on ``batches`` for ``steps``."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole state of the unwrapped model; call it on all ranks."""
        return dict(self.model.state_dict())

    def close(self) -> None:
        """Free what the process group does not; call it on all ranks."""

    def take_turn(self, num_steps: int) -> tuple[float, int]:
        """Seconds of ``num_steps`` steps after one that is not timed, and the real
        targets of their global batches.
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
        steps = range(first + 1, self.next_step)
        tokens = sum(self.batches.parts(s)[0].global_targets for s in steps)
        return seconds, tokens


class _OwnLoop(Contestant):
    """The training loop of this library."""

    def __init__(
        self, arm: Arm, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> None:
        # before the model: they leave the random numbers where the model starts them
        self.streams = rank_streams(params, dist.get_rank(group), arm.processes)
        super().__init__(arm, params, shards, group)
        own = params.train
        self.sync = find_strategy(own.sync)(
            self.model, own, group=group, timed=arm.timed
        )
        kind = OPTIMIZERS[own.optimizer]
        self.optimizer = self.sync.optimizer(kind, own.learning_rate)
        self.recorder = Recorder(self.model, steps=())
        self.precision = make_precision(own.precision)

    def train(self, steps: Iterable[int]) -> None:
        train(
            self.sync,
            self.batches,
            self.optimizer,
            steps,
            self.recorder,
            StepClock(kind_of_step=always_plain),
            self.precision,
            self.streams,
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.sync.state_dict()

    def close(self) -> None:
        self.sync.close()


def measure(
    params: Params, shards: Path, rounds: Iterable[int], arms: Sequence[Arm]
) -> list[Row]:
    """Let all ``arms`` take turns in every one of ``rounds``; call on every rank.

    ``shards`` holds a folder world-W for each world size. The process group must span
    the largest arm. Returns a row per arm and round: ``round``, ``arm``,
    ``processes``, ``threads``, ``world_size``, ``tokens`` and ``seconds``.
    """
    contestants = enter(params, shards, arms)
    rows = take_turns(contestants, rounds, params.baseline.steps_per_round)
    close(contestants)
    return rows


def enter(params: Params, shards: Path, arms: Sequence[Arm]) -> list[Contestant | None]:
    """The contestant of each arm; None on ranks that it does not need."""
    contestants: list[Contestant | None] = []
    # not one for each arm: gloo's threads wake now and then, though their group is idle
    groups = {dist.get_world_size(): world()}
    for arm in arms:
        ranks = list(range(arm.processes))
        if arm.processes not in groups:
            limit = timedelta(seconds=timeout_s(None))
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
    """The rounds of :func:`measure`, with ``num_steps`` timed steps in each turn."""
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
    """Free what the process group does not; call it on all ranks."""
    for contestant in contestants:
        if contestant is not None:
            contestant.close()
