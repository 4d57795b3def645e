"""One process that does what W ranks did, one after the other: same order, same bits.

It reads the ranks' shards, adds their gradients in the order of the strategy (gloo's
ring, a tree) over the buckets that the run recorded, and steps the same optimizer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.core.progress import progress
from minitrain.data.batches import Batches
from minitrain.proof.first_difference import Rows, of_kind
from minitrain.sync.strategy import trained
from minitrain.train.buffers import Buffers, copy_buffers, load_buffers
from minitrain.train.config import RunConfig, plain_optimizer
from minitrain.train.observer import shares_of_loss
from minitrain.train.precision import Precision
from minitrain.train.recorder import Recorder
from minitrain.train.result import TrainResult
from minitrain.train.rng import Stream
from minitrain.train.worker import start_streams

Gradients = dict[str, Tensor]


class BucketLayout:
    """Which parameters were reduced together at which step, from a run's hash rows.

    Where the run shows no buckets, all parameters of ``model`` are one.
    """

    def __init__(self, rows: Rows, model: nn.Module) -> None:
        # before every step, so that :meth:`at` always finds a layout
        self._changes = {-1: [list(trained(model))]}
        for row in of_kind(rows, "buckets"):
            names = [bucket["parameters"] for bucket in row["buckets"]]
            self._changes[row["step"]] = names

    def at(self, step: int) -> list[list[str]]:
        """Names of the parameters in each bucket of ``step``: the latest layout."""
        return self._changes[max(s for s in self._changes if s <= step)]


@dataclass
class Replayed:
    """What the rank of each shard would know (the rows of all are in that of the
    first), the final state, and of a step that was to be kept the values.
    """

    results: list[TrainResult]
    state: dict[str, Tensor]
    values: dict[str, Any]


def replay(
    config: RunConfig,
    rows: Rows,
    world_size: int,
    *,
    show: str = "",
    keep: int | None = None,
    sampled: Iterable[int] = (),
) -> Replayed:
    """Repeat in this process what ``world_size`` ranks did who recorded ``rows``.

    The model starts as rank 0's, which is everybody's; what a rank draws afterwards
    (dropout) goes on from its own seed. Every step starts from the first shard's
    buffers, as under DDP. Which gradients were added up together is the one thing that
    it takes from the run. Threads must be those of the run for its bits to be repeated.
    ``show`` names a progress bar; ``keep`` is a step whose values are kept, ``sampled``
    steps whose tensors are.
    """
    strategy, guarantees = config.sync, config.sync.guarantees
    count = config.num_shards(world_size)
    streams = start_streams(config, count)
    shards = config.batches(range(count), count).by_shard()
    model = config.start_model(0)
    optimizer = plain_optimizer(config, model)
    layout = BucketLayout(rows, model)
    recorder = Recorder(model, config.recorded, sampled, keep)
    precision = Precision(config.precision)
    divisor = count if guarantees.averages else 1
    results = [TrainResult() for _ in shards]
    results[0].hashes = recorder.rows
    results[0].sampled = recorder.sampled
    steps = range(config.steps)
    for step in progress(steps, show, total=len(steps), show=bool(show)):
        turns = zip(shards, streams, results, strict=True)
        gradients, after = _each_shard(model, turns, step, divisor, precision)
        # DDP broadcasts rank 0's before the next forward pass (broadcast_buffers)
        load_buffers(model, after[0])
        _combine(model, gradients, layout.at(step), strategy.reference)
        precision.unscale(optimizer)
        recorder.own_gradients(step, gradients)
        if recorder.wants(step):
            recorder.gradients(step)
        precision.step(optimizer)
        if recorder.wants(step):
            ranks = after if guarantees.own_buffers else [after[0]] * world_size
            recorder.state_of_ranks(step, ranks, precision.state())
    return Replayed(results, dict(model.state_dict()), recorder.values)


def _each_shard(
    model: nn.Module,
    turns: Iterable[tuple[Batches, Stream, TrainResult]],
    step: int,
    divisor: int,
    precision: Precision,
) -> tuple[list[Gradients], list[Buffers]]:
    """What every shard adds to the sum, and the buffers that it ends with; all of them
    start from the same.
    """
    gradients, after, start = [], [], copy_buffers(model)
    for batches, stream, result in turns:
        load_buffers(model, start)
        with stream:
            _compute(model, batches, step, divisor, precision, result)
        # before the sum, and by a product, as the strategies do: dividing the sum
        # rounds otherwise where the divisor is no power of two
        gradients.append(_scaled_gradients(model, 1.0 / divisor))
        after.append(copy_buffers(model))
    return gradients, after


def _compute(
    model: nn.Module,
    batches: Batches,
    step: int,
    divisor: int,
    precision: Precision,
    result: TrainResult,
) -> None:
    """Leave the gradients of one shard; its micro-batches add up in order."""
    model.zero_grad()
    micro_batches, losses = batches.micro_batches(step), []
    for micro_batch in micro_batches:
        with precision.autocast():
            loss = batches.loss(model, micro_batch.inputs)
        weight = micro_batch.num_targets * divisor / micro_batch.global_targets
        precision.scale(loss * weight).backward()
        losses.append(loss)
    result.digests.append(
        tuple(d for micro_batch in micro_batches for d in micro_batch.digests)
    )
    result.losses.append(shares_of_loss(losses, micro_batches))


def _scaled_gradients(model: nn.Module, factor: float) -> Gradients:
    named = model.named_parameters()
    return {name: p.grad * factor for name, p in named if p.grad is not None}


def _combine(
    model: nn.Module,
    gradients: list[Gradients],
    buckets: list[list[str]],
    reduction: Callable[[Sequence[Tensor]], Tensor],
) -> None:
    """Set every ``.grad`` to what ``reduction`` makes of each bucket of all shards.

    A parameter that some shards do not use has a zero there; what nobody uses keeps no
    gradient.
    """
    parameters = dict(model.named_parameters())
    model.zero_grad()
    for names in buckets:
        flat = [
            torch.cat([_in_memory(own.get(n), parameters[n]) for n in names])
            for own in gradients
        ]
        sizes = [parameters[name].numel() for name in names]
        for name, part in zip(names, reduction(flat).split(sizes), strict=True):
            like = next((own[name] for own in gradients if name in own), None)
            if like is not None:
                parameters[name].grad = part.as_strided(
                    like.shape, like.stride(), part.storage_offset()
                )


def _in_memory(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Flat, in the order in which its elements lie in memory and in DDP's bucket.

    Chunks are cut there, so for a transposed weight the row-major order has other bits.
    """
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    return gradient.as_strided((gradient.numel(),), (1,))
