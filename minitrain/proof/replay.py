"""One process that does what W ranks did, one after the other: same order, same bits.

It reads the ranks' shards, adds their gradients in the order of the strategy (gloo's
ring, a tree, a tree inside each host) over the buckets that the run recorded, and steps
the same optimizer.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.data.batches import Batches
from minitrain.proof.first_difference import Rows, of_kind
from minitrain.proof.hosts import Reduction, hosts_of_run, reduction_of
from minitrain.sync.strategy import copy_buffers, load_buffers, trained
from minitrain.train.checkpoint import Checkpoints, Kept
from minitrain.train.config import RunConfig, plain_optimizer
from minitrain.train.observer import shares_of_loss
from minitrain.train.precision import Precision
from minitrain.train.resume import run_through
from minitrain.train.step_record import StepRecord, TrainResult
from minitrain.train.worker import start_streams

Gradients = dict[str, Tensor]


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
    checkpoints: Checkpoints | None = None,
) -> Replayed:
    """Repeat in this process what ``world_size`` ranks did who recorded ``rows``.

    It takes two things from the run: which gradients were added up together, and which
    ranks shared a host, for a strategy that adds there first. Threads must be those of
    the run for its bits to be repeated. ``show`` names a progress bar; ``keep`` is a
    step whose values are kept, ``sampled`` steps whose tensors are. With
    ``checkpoints`` it goes on from the newest.
    """
    recorder = partial(StepRecord, steps=config.recorded, sampled=sampled, keep=keep)
    again = _Replay(config, rows, world_size, recorder)
    run_through(again, config.steps, checkpoints, show=show)
    return Replayed(again.results, dict(again.model.state_dict()), again.values)


class _Replay:
    """One process in the place of ``world_size`` ranks, between two steps."""

    def __init__(
        self,
        config: RunConfig,
        rows: Rows,
        world_size: int,
        recorder: Callable[[nn.Module], StepRecord],
    ) -> None:
        count = config.num_shards(world_size)
        self._sync, self._world_size = config.sync, world_size
        self._divisor = count if config.sync.guarantees.averages else 1
        self._streams = start_streams(config, count)
        self._shards = [config.batches([shard], count) for shard in range(count)]
        self.model = config.start_model(0)
        self._optimizer = plain_optimizer(config, self.model)
        self._precision = Precision(config.precision)
        # where the run shows no buckets, all parameters are one
        self._layouts = {-1: [list(trained(self.model))]}
        for row in of_kind(rows, "buckets"):
            names = [bucket["parameters"] for bucket in row["buckets"]]
            self._layouts[row["step"]] = names
        self._reduction = reduction_of(config.sync, hosts_of_run(rows, world_size))
        self._recorder = recorder(self.model)
        self.values = self._recorder.values
        self.results = [TrainResult() for _ in self._shards]
        self.results[0].hashes = self._recorder.rows
        self.results[0].sampled = self._recorder.sampled

    def run(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._step(step)

    def _step(self, step: int) -> None:
        model, precision, recorder = self.model, self._precision, self._recorder
        divisor, gradients, after = self._divisor, [], []
        # each shard starts from the same buffers
        start = copy_buffers(model)
        turns = zip(self._shards, self._streams, self.results, strict=True)
        for batches, stream, result in turns:
            load_buffers(model, start)
            with stream:
                _compute(model, batches, step, divisor, precision, result)
            # before the sum, and by a product, as the strategies do: dividing the sum
            # rounds otherwise where the divisor is no power of two
            gradients.append(_scaled_gradients(model, 1.0 / divisor))
            after.append(copy_buffers(model))
        # DDP broadcasts rank 0's before the next forward pass (broadcast_buffers)
        load_buffers(model, after[0])
        layout = self._layouts[max(s for s in self._layouts if s <= step)]
        _combine(model, gradients, layout, self._reduction)
        precision.unscale(self._optimizer)
        recorder.own_gradients(step, gradients)
        if step in recorder.steps:
            recorder.gradients(step)
        precision.step(self._optimizer)
        if step in recorder.steps:
            same = [after[0]] * self._world_size
            ranks = after if self._sync.guarantees.own_buffers else same
            recorder.state(step, precision.state(), ranks)

    def kept(self) -> Kept:
        # its own word on what the steps to come depend on, and not that of the ranks:
        # what that forgets, a replay that was interrupted too would else forget alike
        seen = [(one.losses, one.digests) for one in self.results]
        return {
            "model": self._tensors(),
            "optimizer": self._optimizer.state_dict(),
            "precision": self._precision.state(),
            "streams": [stream.state for stream in self._streams],
            "seen": json.dumps({"shards": seen, **self._recorder.kept()}),
        }

    def restore(self, kept: Kept) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(kept["model"][name])
        self._optimizer.load_state_dict(kept["optimizer"])
        self._precision.restore(kept["precision"])
        for stream, state in zip(self._streams, kept["streams"], strict=True):
            stream.state = state
        seen = json.loads(kept["seen"])
        for one, (losses, digests) in zip(self.results, seen["shards"], strict=True):
            one.losses, one.digests = losses, [tuple(own) for own in digests]
        self._recorder.restore(seen)

    def _tensors(self) -> dict[str, Tensor]:
        model = self.model
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return {name: tensor.detach() for name, tensor in named.items()}


def _compute(
    model: nn.Module,
    batches: Batches,
    step: int,
    divisor: int,
    precision: Precision,
    result: TrainResult,
) -> None:
    # leaves the gradients of one shard; its micro-batches add up in order
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
    reduction: Reduction,
) -> None:
    # a parameter that some shards do not use has a zero there; what none uses keeps no
    # gradient
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
    # flat, in the order in which its elements lie in memory and in DDP's bucket: chunks
    # are cut there, so for a transposed weight the row-major order has other bits
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    return gradient.as_strided((gradient.numel(),), (1,))
