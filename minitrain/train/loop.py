"""The training loop, readable top to bottom: it does not know how ranks synchronise."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.core.errors import UserError
from minitrain.core.params import Train
from minitrain.data.batches import Batch, Batches
from minitrain.distributed.groups import barrier
from minitrain.sync.strategy import Strategy
from minitrain.train.buffers import untouched_buffers
from minitrain.train.clock import NS_PER_MS, Row, StepClock, bucket_times
from minitrain.train.precision import Precision
from minitrain.train.recorder import Recorder, Tensors
from minitrain.train.rng import Stream, untouched_random_state

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


@dataclass
class TrainResult:
    """What one rank knows after training; every list has one entry per step.

    ``losses`` are shares of the mean loss over all real targets of the global batch,
    one for each part of this rank: their sum over all ranks is that mean. ``digests``
    name the samples. ``timings`` and ``hashes`` are rows as
    :mod:`~minitrain.train.clock` and :mod:`~minitrain.train.recorder` describe them,
    and so are the tensors that are ``kept``. ``probes`` has the losses of
    :mod:`~minitrain.train.probe` by name.
    """

    losses: list[list[float]] = field(default_factory=list)
    digests: list[tuple[int, ...]] = field(default_factory=list)
    timings: list[Row] = field(default_factory=list)
    hashes: list[Row] = field(default_factory=list)
    kept: dict[str, Tensors] = field(default_factory=dict)
    probes: dict[str, list[float]] = field(default_factory=dict)

    def add(self, row: Row, parts: Sequence[Batch], losses: Iterable[Tensor]) -> None:
        """Note a step of ``parts``, which had these ``losses``."""
        self.timings.append(row | {"tokens": sum(part.num_targets for part in parts)})
        self.digests.append(tuple(d for part in parts for d in part.digests))
        shares = map(_share_of_loss, losses, parts)
        self.losses.append(list(shares))


def mean_losses(results: Iterable[TrainResult]) -> list[float]:
    """The loss of every step over all ranks, whatever the order of its shares."""
    by_step = zip(*(result.losses for result in results), strict=True)
    return [mean_loss(step) for step in by_step]


def mean_loss(shares: Iterable[Sequence[float]]) -> float:
    """Of the shares that each rank computed, the sum."""
    # exactly rounded, it does not depend on how the batch was cut over ranks
    return math.fsum(share for rank in shares for share in rank)


def weighted_loss(loss: Tensor, batch: Batch, divisor: int) -> Tensor:
    """``loss`` (mean over the part's targets) scaled so that the sum of all parts'
    gradients, over ``divisor``, is the gradient of the mean over all real targets of
    the global batch.
    """
    return loss * (batch.num_targets * divisor / batch.global_targets)


def steps_to_train(params: Train, steps_per_epoch: int) -> int:
    """``num_steps``, or the steps of ``num_epochs``; UserError if all are warm-up."""
    steps = params.num_steps
    if steps is None:
        assert params.num_epochs is not None
        steps = params.num_epochs * steps_per_epoch
        params.check_warmup(steps)
    return steps


def train(
    sync: Strategy,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int],
    recorder: Recorder,
    clock: StepClock,
    precision: Precision | None = None,
    streams: Mapping[int, Stream] | None = None,
) -> TrainResult:
    """Train the model of ``sync`` on this rank's ``batches`` for ``steps``.

    ``streams`` are the random numbers of each shard, where a process computes several.
    Raises UserError when the loss is no longer a finite number.
    """
    precision = precision or Precision()
    result = TrainResult(hashes=recorder.rows, kept=recorder.kept)
    forward = partial(_forward, sync, batches, precision)
    for step in steps:
        recorder.begin(step, partial(sync.moments, optimizer))
        clock.begin(step)
        parts = batches.parts(step)
        clock.mark("data")
        _meet(clock)
        losses = []
        sync.trace.clear()
        for part in parts:
            with _part(sync, parts, part, streams, clock):
                with recorder.watch_forward():
                    losses.append(forward(part))
                clock.mark("forward")
                weighted = weighted_loss(losses[-1], part, sync.divisor)
                _backward(precision.scale(weighted), clock)
        _reduce(sync, clock)
        precision.unscale(optimizer)
        with recorder.step(step, sync.trace, precision.state, clock.restart):
            precision.step(optimizer)
            optimizer.zero_grad()
            clock.mark("optimizer")
            clock.carve("optimizer", "optimizer_comm", sync.trace.optimizer_ns)
            row = clock.finish() | {"recorded": recorder.wants(step)}
        if clock.kind == "bracketed":
            passes = [partial(forward, part) for part in parts]
            row["backward_compute_ms"] = _silent_backward_ms(sync, passes, clock)
        result.add(row | _logged(sync, parts, clock), parts, losses)
        recorder.fed(step, parts)
        clock.restart()
    return result


@contextmanager
def _part(
    sync: Strategy,
    parts: Sequence[Batch],
    part: Batch,
    streams: Mapping[int, Stream] | None,
    clock: StepClock,
) -> Iterator[None]:
    random = nullcontext() if streams is None else streams[part.shard]
    with sync.part(part.shard, part is parts[-1]), random:
        if part is not parts[0]:
            # between two parts a strategy may add up gradients
            clock.mark("backward")
        yield


def _meet(clock: StepClock) -> None:
    if clock.kind == "instrumented":
        barrier()
        clock.mark("wait")


def _forward(
    sync: Strategy, batches: Batches, precision: Precision, part: Batch
) -> Tensor:
    with precision.autocast():
        return batches.loss(sync.module, part.inputs)


def _backward(loss: Tensor, clock: StepClock) -> None:
    if clock.kind == "bracketed":
        barrier()
        clock.restart()
    loss.backward()
    if clock.kind == "bracketed":
        barrier()
    clock.mark("backward")


def _reduce(sync: Strategy, clock: StepClock) -> None:
    sync.reduce()
    clock.mark("backward")
    clock.row |= bucket_times(sync.trace, clock.row["backward_ms"], clock.now_ns)


def _silent_backward_ms(
    sync: Strategy, passes: Iterable[Callable[[], Tensor]], clock: StepClock
) -> float:
    """Milliseconds of backward passes that send nothing; leaves no trace behind."""
    total = 0
    with untouched_buffers(sync.model), untouched_random_state(), sync.silent():
        for forward in passes:
            loss = forward()
            barrier()
            clock.restart()
            start = clock.now_ns
            loss.backward()
            clock.restart()
            total += clock.now_ns - start
    sync.model.zero_grad()
    return total / NS_PER_MS


def _logged(sync: Strategy, parts: Sequence[Batch], clock: StepClock) -> Row:
    # of several passes DDP times the last one alone
    return sync.logged() if clock.watches and len(parts) == 1 else {}


def _share_of_loss(loss: Tensor, batch: Batch) -> float:
    value = loss.item()
    if not math.isfinite(value):
        rank = dist.get_rank() if dist.is_initialized() else 0
        raise UserError(
            f"train: the loss is {value} at step {batch.step} on rank {rank}; "
            "a smaller train.learning_rate may keep it finite"
        )
    return value * batch.num_targets / batch.global_targets
