"""One process that does what W ranks did, one after the other: same order, same bits.

It shares no line with the loop that it checks. It reads the ranks' shards, adds their
gradients in the order of gloo's ring over the buckets that the run recorded, and
steps the same optimizer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.batches import Batches
from minitrain.buffers import copy_buffers, load_buffers
from minitrain.hashes import Recorder
from minitrain.randomness import Stream
from minitrain.ring import ring_sum
from minitrain.training import TrainResult

Gradients = dict[str, Tensor]


class BucketLayout:
    """Which parameters DDP reduced together at which step, from a run's hash rows."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self._changes = {
            row["step"]: [bucket["parameters"] for bucket in row["buckets"]]
            for row in rows
            if row["kind"] == "buckets"
        }

    def at(self, step: int) -> list[list[str]]:
        """Names of the parameters in each bucket of ``step``."""
        return self._changes[max(s for s in self._changes if s <= step)]


def replay(
    model: nn.Module,
    ranks: Sequence[Batches],
    layout: BucketLayout,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int],
    recorder: Recorder,
    streams: Sequence[Stream],
) -> list[TrainResult]:
    """Train ``model`` on the batches of all ``ranks``, in this process.

    ``model`` must hold rank 0's start, ``streams`` the random numbers of each rank from
    there on; threads and batch shapes must be those of the run for its bits to be
    repeated. Every forward pass starts from rank 0's buffers, as under DDP. Returns
    what each rank would know; the rows of all are in that of rank 0.
    """
    results = [TrainResult() for _ in ranks]
    results[0].hashes, results[0].kept = recorder.rows, recorder.kept
    for step in steps:
        gradients: list[Gradients] = []
        start, after = copy_buffers(model), []
        for batches, stream, result in zip(ranks, streams, results, strict=True):
            batch = batches.batch(step)
            model.zero_grad()
            load_buffers(model, start)
            with stream:
                loss = batches.loss(model, batch.inputs)
                weight = batch.num_targets * len(ranks) / batch.global_targets
                (loss * weight).backward()
            gradients.append(_scaled_gradients(model, 1.0 / len(ranks)))
            after.append(copy_buffers(model))
            share = batch.num_targets / batch.global_targets
            result.losses.append(loss.item() * share)
            result.digests.append(batch.digests)
        load_buffers(model, after[0])
        _combine(model, gradients, layout.at(step))
        recorder.own_gradients(step, gradients)
        if recorder.wants(step):
            recorder.gradients(step)
        optimizer.step()
        if recorder.wants(step):
            recorder.state_of_ranks(step, after)
    return results


def _scaled_gradients(model: nn.Module, factor: float) -> Gradients:
    named = model.named_parameters()
    return {name: p.grad * factor for name, p in named if p.grad is not None}


def _combine(
    model: nn.Module, gradients: list[Gradients], buckets: list[list[str]]
) -> None:
    """Set every ``.grad`` to the sum over ranks, bucket by bucket, in ring order."""
    parameters = dict(model.named_parameters())
    for names in buckets:
        flat = [torch.cat([_in_memory(g[name]) for name in names]) for g in gradients]
        sizes = [parameters[name].numel() for name in names]
        for name, part in zip(names, ring_sum(flat).split(sizes), strict=True):
            like = gradients[0][name]
            parameters[name].grad = part.as_strided(
                like.shape, like.stride(), part.storage_offset()
            )


def _in_memory(gradient: Tensor) -> Tensor:
    """Flat, in the order in which its elements lie in memory and in DDP's bucket.

    Chunks are cut there, so for a transposed weight the row-major order has other bits.
    """
    return gradient.as_strided((gradient.numel(),), (1,))
