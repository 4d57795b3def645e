"""One process that does what W ranks did, one after the other: same order, same bits.

It reads the ranks' shards, adds their gradients in the order of the strategy (gloo's
ring, a tree) over the buckets that the run recorded, and steps the same optimizer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.data.batches import Batches
from minitrain.sync.strategy import Strategy, trained
from minitrain.train.buffers import copy_buffers, load_buffers
from minitrain.train.loop import TrainResult
from minitrain.train.precision import Precision
from minitrain.train.recorder import Recorder
from minitrain.train.rng import Stream

Gradients = dict[str, Tensor]


class BucketLayout:
    """Which parameters were reduced together at which step, from a run's hash rows.

    Where the run shows no buckets, all parameters of ``model`` are one.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], model: nn.Module) -> None:
        self._changes = {-1: [list(trained(model))]}
        for row in rows:
            if row["kind"] == "buckets":
                names = [bucket["parameters"] for bucket in row["buckets"]]
                self._changes[row["step"]] = names

    def at(self, step: int) -> list[list[str]]:
        """Names of the parameters in each bucket of ``step``."""
        return self._changes[max(s for s in self._changes if s <= step)]


def replay(
    model: nn.Module,
    shards: Sequence[Batches],
    layout: BucketLayout,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int],
    recorder: Recorder,
    streams: Sequence[Stream],
    strategy: type[Strategy],
    world_size: int,
    precision: Precision | None = None,
) -> list[TrainResult]:
    """Train ``model`` on the batches of all ``shards``, in this process.

    ``model`` must hold rank 0's start, ``streams`` the random numbers of each shard
    from there on; threads and batch shapes must be those of the run for its bits to be
    repeated. Every step starts from the first shard's buffers, as under DDP.
    ``strategy`` says how a bucket of all shards' gradients becomes one, ``world_size``
    how many ranks record a row. Returns what the rank of each shard
    would know; the rows of all are in that of the first.
    """
    precision = precision or Precision()
    divisor = len(shards) if strategy.averages else 1
    results = [TrainResult() for _ in shards]
    results[0].hashes, results[0].kept = recorder.rows, recorder.kept
    for step in steps:
        gradients: list[Gradients] = []
        start, after = copy_buffers(model), []
        for batches, stream, result in zip(shards, streams, results, strict=True):
            load_buffers(model, start)
            with stream:
                _compute(model, batches, step, divisor, precision, result)
            gradients.append(_scaled_gradients(model, 1.0 / divisor))
            after.append(copy_buffers(model))
        load_buffers(model, after[0])
        _combine(model, gradients, layout.at(step), strategy.reference)
        precision.unscale(optimizer)
        recorder.own_gradients(step, gradients)
        if recorder.wants(step):
            recorder.gradients(step)
        precision.step(optimizer)
        if recorder.wants(step):
            ranks = after if strategy.own_buffers else [after[0]] * world_size
            recorder.state_of_ranks(step, ranks, precision.state())
    return results


def _compute(
    model: nn.Module,
    batches: Batches,
    step: int,
    divisor: int,
    precision: Precision,
    result: TrainResult,
) -> None:
    """Leave the gradients of one shard; the parts of its batch add up in turn."""
    model.zero_grad()
    parts, losses = batches.parts(step), []
    for part in parts:
        with precision.autocast():
            loss = batches.loss(model, part.inputs)
        weight = part.num_targets * divisor / part.global_targets
        precision.scale(loss * weight).backward()
        losses.append(loss)
    result.add({}, parts, losses)


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
