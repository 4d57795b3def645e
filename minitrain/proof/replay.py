"""Replay: one process repeats the work of W ranks sequentially, with equal bits.

It reads all shards, sums the gradients in the order of the strategy (gloo's ring, a
tree, a tree inside each host) over the recorded buckets, and steps the same optimizer.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.core.errors import EvidenceError
from minitrain.core.progress import progress
from minitrain.data.cut import Batches
from minitrain.proof.evidence import Evidence, Rows, evidence_of, of_kind
from minitrain.sync.strategy import (
    Strategy,
    copy_buffers,
    load_buffers,
    names_by_type,
    trained,
)
from minitrain.train.config import RunConfig, plain_optimizer
from minitrain.train.observer import shares_of_loss
from minitrain.train.precision import Precision
from minitrain.train.step_record import StepRecord, TrainResult
from minitrain.train.worker import start_streams

Gradients = dict[str, Tensor]
Reduction = Callable[[Sequence[Tensor]], Tensor]
Hosts = list[list[int]]


def replay(
    config: RunConfig,
    rows: Rows,
    world_size: int,
    *,
    show: str = "",
    keep: int | None = None,
    sampled: Iterable[int] = (),
) -> Evidence:
    """Repeat a run of ``world_size`` ranks in this process; return the evidence.

    From the run's ``rows`` come only buckets, and the ranks of each host if the
    strategy reduces within hosts first; without rows, each dtype has one bucket. Bits
    are equal only with as many threads as a rank had. ``show`` labels a progress bar
    (empty: none); see :class:`StepRecord` for ``keep`` and ``sampled``. ``results`` has
    one per shard, the first with all rows. Raises EvidenceError for contradictory rows.
    """
    count, guarantees = config.num_shards(world_size), config.sync.guarantees
    streams = start_streams(config, count)
    shards = [config.batches([shard], count) for shard in range(count)]
    model = config.start_model(0)
    optimizer, precision = plain_optimizer(config, model), Precision(config.precision)
    layouts = {-1: names_by_type(trained(model))}
    # steps without buckets are a fault, which is not replayed
    for row in (row for row in of_kind(rows, "buckets") if row["buckets"]):
        layouts[row["step"]] = [bucket["parameters"] for bucket in row["buckets"]]
    reduction = reduction_of(config.sync, hosts_of_run(rows, world_size))
    recorder = StepRecord(model, config.recorded, sampled=sampled, keep=keep)
    results = [TrainResult() for _ in shards]
    results[0].hashes, results[0].sampled = recorder.rows, recorder.sampled
    divisor = count if guarantees.averages else 1
    for step in progress(range(config.steps), show, show=bool(show)):
        # each shard starts from the same buffers
        start, gradients, after = copy_buffers(model), [], []
        recorder.begin(step)
        for batches, stream, result in zip(shards, streams, results, strict=True):
            load_buffers(model, start)
            with stream:
                _compute(model, batches, step, divisor, precision, result)
            # multiply before the sum, as the strategies do: dividing the sum rounds
            # differently if the divisor is not a power of two
            own = ((name, p.grad) for name, p in model.named_parameters())
            gradients.append({n: g * (1.0 / divisor) for n, g in own if g is not None})
            after.append(copy_buffers(model))
        # DDP broadcasts rank 0's buffers before the next forward pass
        load_buffers(model, after[0])
        layout = layouts[max(s for s in layouts if s <= step)]
        _combine(model, gradients, layout, reduction)
        precision.unscale(optimizer)
        recorder.own_gradients(step, gradients)
        if step in recorder.steps:
            recorder.gradients(step)
        precision.step(optimizer)
        if step in recorder.steps:
            ranks = after if guarantees.own_buffers else [after[0]] * world_size
            recorder.state(step, precision.scaler.state_dict(), ranks)
    state = dict(model.state_dict())
    return evidence_of(results, [state], values=[recorder.values])


def hosts_of_run(rows: Rows, world_size: int) -> Hosts:
    """Return the ranks on each host from a run's hash rows; one host if none is
    recorded. Raises EvidenceError if a rank is not on exactly one host.
    """
    one = [[*range(world_size)]]
    recorded = [row.get("hosts", one) for row in of_kind(rows, "buckets")]
    hosts: Hosts = recorded[0] if recorded else one
    if sorted(rank for host in hosts for rank in host) != one[0]:
        must = f"must hold each of {world_size} ranks once"
        raise EvidenceError(f"buckets: hosts = {hosts}: {must}")
    return hosts


def reduction_of(strategy: type[Strategy], hosts: Hosts) -> Reduction:
    """Return the function that sums a bucket over all shards, in the strategy's order:
    from a tensor (n,) per shard to one (n,). ``hosts`` are the ranks on each host.
    """
    reference: Any = strategy.reference
    by_host = strategy.guarantees.adds_in == "hosts"
    return partial(reference, hosts=hosts) if by_host else reference


def _compute(
    model: nn.Module,
    batches: Batches,
    step: int,
    divisor: int,
    precision: Precision,
    result: TrainResult,
) -> None:
    # accumulates the gradients of one shard over its micro-batches, in order, and adds
    # losses and digests to ``result``
    model.zero_grad()
    micro_batches, losses = batches.micro_batches(step), []
    for micro_batch in micro_batches:
        with precision.autocast():
            loss = batches.loss(model, micro_batch.inputs)
        weight = micro_batch.num_targets * divisor / micro_batch.global_targets
        precision.scaler.scale(loss * weight).backward()
        losses.append(loss)
    result.digests.append(
        tuple(d for micro_batch in micro_batches for d in micro_batch.digests)
    )
    result.losses.append(shares_of_loss(losses, micro_batches))


def _combine(
    model: nn.Module,
    gradients: list[Gradients],
    buckets: list[list[str]],
    reduction: Reduction,
) -> None:
    # a parameter unused in some shards counts as zero there; one that no shard uses
    # keeps no gradient
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
    # flat, in memory order, as in DDP's bucket: the ring cuts it into chunks, so for a
    # transposed weight row-major order would change the bits
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    return gradient.as_strided((gradient.numel(),), (1,))
