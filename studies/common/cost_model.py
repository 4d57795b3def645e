"""What a training step costs: computing, and communication that nothing hides.

``step = data + forward + backward + interference + exposed + optimizer``. All-reduces
go through one channel: each begins when its bucket is there and the one before it is
done, and exposed is the time from the last bucket until the channel is free. What is
assumed:

- A pass takes seconds for every flop, for every element that it writes, for every
  parameter that it reads or whose gradient it writes, and for every operator that it
  calls, whatever the layer. A layer's part of the backward pass says when its gradients
  are there.
- Ranks are alike, begin a step together, and each computes with one thread.
- Ranks share the memory of their machine: computing takes ``contention`` times as long
  when all cores compute, and in between in proportion. With more ranks than cores it
  takes their ratio longer, and more by ``crowding`` for every rank above one a core.
- Communication takes processor time. Where every core computes, a bucket delays the
  computing that goes on beside it (``hidden_byte``, ``hidden_bucket``); where each rank
  has a second core to itself it does not, and in between it is in proportion.
- What the last bucket costs the processor is within the time of its all-reduce.
- gloo may have two all-reduces under way, which then share the link; the last one ends
  as if they had waited for each other.
- Waiting for the slower of ranks that are alike takes a share of computing
  (``straggle``), copies into and out of buckets take ``byte`` a byte.
- A bucket in float16 travels in half the bytes, and ``cast`` is paid for each of its
  bytes in float32.
- Of several micro-batches only the last one communicates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from gpt_layers import (
    Bucket,
    buckets,
    features,
    layers_of,
    num_parameters,
    num_tensors,
)
from least_squares import Array
from link_model import Link
from setting import FP16, NO_SYNC, Setting


@dataclass(frozen=True)
class Compute:
    """Seconds of a process that is alone, on one core: for a flop, an element, a
    parameter and a call of the forward pass, the same of the backward pass; for a
    parameter and for a tensor of the optimizer; for a sample and for a micro-batch of
    data.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    optimizer: tuple[float, ...]
    data: tuple[float, ...]


@dataclass(frozen=True)
class Overheads:
    """What synchronizing costs besides its channel: see the module.

    Seconds a ``step``, a ``byte``, a ``hidden_byte``, a ``hidden_bucket``, a ``cast``
    byte, and for every rank above one a core (``crowd``); ``straggle`` is a share.
    """

    step: float = 0.0
    straggle: float = 0.0
    byte: float = 0.0
    hidden_byte: float = 0.0
    hidden_bucket: float = 0.0
    crowd: float = 0.0
    cast: float = 0.0


@dataclass(frozen=True)
class Machine:
    """``compute`` of one process, and what becomes of it when there are several on
    ``cores``.
    """

    cores: int
    compute: Compute
    contention: float = 1.0
    crowding: float = 0.0
    link_crowding: tuple[float, float] = (1.0, 1.0)
    overheads: Overheads = Overheads()

    def excess(self, processes: int) -> float:
        """Ranks above one for each core, over cores; 0 where each has one."""
        return max(0.0, processes / self.cores - 1)

    def slowdown(self, processes: int) -> float:
        """How many times as long computing takes as in a process that is alone."""
        beside = (min(processes, self.cores) - 1) / max(1, self.cores - 1)
        excess = self.excess(processes)
        return (
            (1 + (self.contention - 1) * beside)
            * (1 + excess)
            * (1 + self.crowding * excess)
        )

    def without_core(self, processes: int) -> float:
        """The share of communication that finds no core that is idle."""
        return min(1.0, max(0.0, 2 - self.cores / processes))

    def link(self, link: Link, processes: int) -> Link:
        """``link`` as that many ranks of this machine see it."""
        excess = self.excess(processes)
        alpha, beta = (1 + (one - 1) * excess for one in self.link_crowding)
        return link.crowded(alpha, beta)


class Step(NamedTuple):
    """Seconds of the parts of a step; they add up to it."""

    data: float
    forward: float
    backward: float
    interference: float
    exposed: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return float(sum(self))


def predict(setting: Setting, machine: Machine, link: Link | None = None) -> Step:
    """The step of ``setting`` over ``link``, which only synchronizing needs."""
    data, forward, layers, optimizer = passes(setting, machine)
    backward = setting.micro_batches * float(layers.sum())
    if setting.sync == NO_SYNC:
        return Step(data, forward, backward, 0.0, 0.0, optimizer)
    assert link is not None, "what synchronizes needs a link"
    computing = data + forward + backward + optimizer
    on, slow = machine.overheads, machine.slowdown(setting.processes)
    handed_over = buckets(layers_of(setting), setting.bucket_cap_mb)
    size = sum(bucket.num_bytes for bucket in handed_over)
    hidden = slow * machine.without_core(setting.processes) * on_computing(setting, on)
    exposed = channel(
        ready_at(handed_over, layers, hidden),
        [sent_bytes(setting, bucket) for bucket in handed_over],
        machine.link(link, setting.processes),
        setting.processes,
    )
    fixed = slow * (on.step + on.byte * size) + on.straggle * computing
    fixed += on.crowd * machine.excess(setting.processes)
    if setting.sync == FP16:
        fixed += slow * on.cast * size
    interference = fixed + float(hidden.sum())
    return Step(data, forward, backward, interference, exposed, optimizer)


def passes(setting: Setting, machine: Machine) -> tuple[float, float, Array, float]:
    """Seconds of data, of all forward passes, of each layer of one backward pass (by
    its place in it), and of the optimizer, while nobody communicates.
    """
    slow, costs = machine.slowdown(setting.processes), machine.compute
    parts = setting.micro_batches
    tokens = setting.samples / parts * setting.block_size
    work = slow * features(layers_of(setting), tokens)
    data = slow * float(np.dot(costs.data, [setting.samples, parts]))
    state = [num_parameters(layers_of(setting)), num_tensors(layers_of(setting))]
    optimizer = slow * float(np.dot(costs.optimizer, state))
    forward = parts * float((work @ costs.forward).sum())
    return data, forward, work @ costs.backward, optimizer


def sent_bytes(setting: Setting, bucket: Bucket) -> float:
    """Payload of the all-reduce of ``bucket``."""
    return bucket.num_bytes / (2 if setting.sync == FP16 else 1)


def on_computing(setting: Setting, on: Overheads) -> Array:
    """By how many seconds each bucket delays what is computed beside it, where no core
    is idle; nothing is computed beside the last.
    """
    *others, _ = buckets(layers_of(setting), setting.bucket_cap_mb)
    costs = [
        on.hidden_byte * sent_bytes(setting, one) + on.hidden_bucket for one in others
    ]
    return np.array([*costs, 0.0])


def ready_at(
    handed_over: Sequence[Bucket], layers: Array, delays: Array
) -> list[float]:
    """Seconds from the start of a backward pass until each bucket is there.

    ``layers`` are the seconds of each layer of that pass; a bucket delays those after
    it by its part of ``delays``.
    """
    done = np.cumsum(layers)
    before = np.cumsum(delays) - delays
    return [
        float(done[bucket.after] + before[number])
        for number, bucket in enumerate(handed_over)
    ]


def channel(
    ready: Sequence[float], num_bytes: Sequence[float], link: Link, world_size: int
) -> float:
    """Seconds from when the last bucket is ready until all are reduced, one after the
    other, each begun when it is ready and the one before it is done.
    """
    # since the step before
    free = -math.inf
    for at, size in zip(ready, num_bytes, strict=True):
        start = max(at, free)
        free = start + link.seconds(size, world_size, start - free)
    return free - ready[-1]
