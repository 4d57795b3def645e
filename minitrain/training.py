"""The training loop, readable top to bottom: it does not know how ranks synchronise."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.batches import Batch, Batches
from minitrain.buffers import untouched_buffers
from minitrain.clock import NS_PER_MS, Row, StepClock, bucket_times
from minitrain.ddp import barrier
from minitrain.errors import UserError
from minitrain.hashes import Recorder, Tensors
from minitrain.params import Train
from minitrain.randomness import untouched_random_state
from minitrain.sync import GradientSync


@dataclass
class TrainResult:
    """What one rank knows after training; every list has one entry per step.

    ``losses`` are this rank's shares of the mean loss over all real targets of the
    global batch: their sum over the ranks is that mean. ``digests`` name the samples.
    ``timings`` and ``hashes`` are rows as :mod:`~minitrain.clock` and
    :mod:`~minitrain.hashes` describe them, and so are the tensors that are ``kept``.
    """

    losses: list[float] = field(default_factory=list)
    digests: list[tuple[int, ...]] = field(default_factory=list)
    timings: list[Row] = field(default_factory=list)
    hashes: list[Row] = field(default_factory=list)
    kept: dict[str, Tensors] = field(default_factory=dict)


def make_optimizer(model: nn.Module, params: Train) -> torch.optim.Optimizer:
    """``train.optimizer`` at ``train.learning_rate``, the rest as torch has it."""
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    return kinds[params.optimizer](model.parameters(), lr=params.learning_rate)


def weighted_loss(loss: Tensor, batch: Batch, world_size: int) -> Tensor:
    """``loss`` (mean over the rank's targets) scaled so that the average of the ranks'
    gradients is the gradient of the mean over all real targets of the global batch.
    """
    return loss * (batch.num_targets * world_size / batch.global_targets)


def steps_to_train(params: Train, steps_per_epoch: int) -> int:
    """``num_steps``, or the steps of ``num_epochs``; UserError if all are warm-up."""
    steps = params.num_steps
    if steps is None:
        assert params.num_epochs is not None
        steps = params.num_epochs * steps_per_epoch
        params.check_warmup(steps)
    return steps


def train(
    model: nn.Module,
    sync: GradientSync,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int],
    recorder: Recorder,
    clock: StepClock,
) -> TrainResult:
    """Train ``model`` on this rank's ``batches`` for ``steps``.

    Hashing lies outside of what the clock sees. Raises UserError when the loss is no
    longer a finite number.
    """
    result = TrainResult(hashes=recorder.rows, kept=recorder.kept)
    for step in steps:
        clock.begin(step)
        batch = batches.batch(step)
        clock.mark("data")
        if clock.kind == "instrumented":
            barrier()
            clock.mark("wait")

        with recorder.watch_forward(step):
            loss = batches.loss(sync.module, batch.inputs)
        clock.mark("forward")
        _backward(weighted_loss(loss, batch, batches.world_size), sync, clock)
        if recorder.wants(step):
            recorder.layout(step, sync.trace)
            recorder.gradients(step)
            clock.restart()
        optimizer.step()
        optimizer.zero_grad()
        clock.mark("optimizer")

        row = clock.finish()
        if recorder.wants(step):
            recorder.state(step)
            # hashing at unlike pace must not become the next step's wait
            barrier()
        if clock.kind == "bracketed":
            silent = partial(batches.loss, sync.module, batch.inputs)
            row["backward_compute_ms"] = _silent_backward_ms(sync, model, silent, clock)
        row |= {"recorded": recorder.wants(step), "tokens": batch.num_targets}
        result.timings.append(row)
        result.digests.append(batch.digests)
        result.losses.append(_share_of_loss(loss, batch))
        clock.restart()
    return result


def _backward(loss: Tensor, sync: GradientSync, clock: StepClock) -> None:
    sync.trace.clear()
    if clock.kind == "bracketed":
        barrier()
        clock.restart()
    start = clock.now_ns
    loss.backward()
    if clock.kind == "bracketed":
        barrier()
    clock.mark("backward")
    clock.row |= bucket_times(sync.trace, start, clock.now_ns)


def _silent_backward_ms(
    sync: GradientSync,
    model: nn.Module,
    compute_loss: Callable[[], Tensor],
    clock: StepClock,
) -> float:
    """Milliseconds of a backward pass that sends nothing; leaves no trace behind."""
    with untouched_buffers(model), untouched_random_state(), sync.silent():
        loss = compute_loss()
        barrier()
        clock.restart()
        start = clock.now_ns
        loss.backward()
        clock.restart()
    model.zero_grad()
    return (clock.now_ns - start) / NS_PER_MS


def _share_of_loss(loss: Tensor, batch: Batch) -> float:
    value = loss.item()
    if not math.isfinite(value):
        rank = dist.get_rank() if dist.is_initialized() else 0
        raise UserError(
            f"train: the loss is {value} at step {batch.step} on rank {rank}; "
            "a smaller train.learning_rate may keep it finite"
        )
    return value * batch.num_targets / batch.global_targets
