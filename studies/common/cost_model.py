"""Cost model of a training step: computation and exposed communication.

``step = data + forward + backward + interference + exposed + optimizer``. All-reduces
go through one channel: each starts when its bucket is ready and the previous one is
done; ``exposed`` is the time from the last bucket until the channel is free.
Assumptions:

- A pass costs seconds per flop, per element written, per parameter read or whose
  gradient is written, and per operator call, for any layer. The position of a layer in
  the backward pass determines when its gradients are ready.
- Ranks are identical, start a step together, and compute with one thread each.
- Ranks share memory bandwidth: computation is slower by ``contention`` when all cores
  compute, interpolated below that. With more ranks than cores it is slower by their
  ratio, and by ``crowding`` for every rank per core above one.
- Communication takes CPU time. When all cores compute, a bucket delays concurrent
  computation (``hidden_byte``, ``hidden_bucket``); with a second core per rank it does
  not; interpolated in between.
- The CPU time of the last bucket is included in its all-reduce.
- gloo may run two all-reduces at once, which share the link; the last one ends as if
  they ran in sequence.
- Waiting for the slower of identical ranks costs a fraction of computation
  (``straggle``), copying into and out of buckets costs ``byte`` per byte.
- A float16 bucket has half the bytes; ``cast`` is the cost per byte of float32.
- With several micro-batches only the last one communicates.
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
    """Costs of a single process on one core, in seconds: per flop, element, parameter
    and call of the forward pass, the same for backward; per parameter and tensor of the
    optimizer; per sample and micro-batch of data.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    optimizer: tuple[float, ...]
    data: tuple[float, ...]


@dataclass(frozen=True)
class Overheads:
    """Costs of synchronization besides the channel; see the module.

    Seconds per ``step``, ``byte``, ``hidden_byte``, ``hidden_bucket``, ``cast`` byte,
    and per rank per core above one (``crowd``); ``straggle`` is a fraction.
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
    """Machine with ``cores``, on which one process has the costs ``compute``."""

    cores: int
    compute: Compute
    contention: float = 1.0
    crowding: float = 0.0
    link_crowding: tuple[float, float] = (1.0, 1.0)
    overheads: Overheads = Overheads()

    def excess(self, processes: int) -> float:
        """Return the ranks per core above one; at least 0."""
        return max(0.0, processes / self.cores - 1)

    def slowdown(self, processes: int) -> float:
        """Return the factor by which computation is slower than in a single process."""
        beside = (min(processes, self.cores) - 1) / max(1, self.cores - 1)
        excess = self.excess(processes)
        return (
            (1 + (self.contention - 1) * beside)
            * (1 + excess)
            * (1 + self.crowding * excess)
        )

    def without_core(self, processes: int) -> float:
        """Return the fraction of communication that finds no idle core."""
        return min(1.0, max(0.0, 2 - self.cores / processes))

    def link(self, link: Link, processes: int) -> Link:
        """Return ``link`` as seen by that many ranks on this machine."""
        excess = self.excess(processes)
        alpha, beta = (1 + (one - 1) * excess for one in self.link_crowding)
        return link.crowded(alpha, beta)


class Step(NamedTuple):
    """Seconds of the components of a step."""

    data: float
    forward: float
    backward: float
    interference: float
    exposed: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """Sum of all components."""
        return float(sum(self))


def predict(setting: Setting, machine: Machine, link: Link | None = None) -> Step:
    """Predict a step of ``setting``; ``link`` is only needed for synchronization."""
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
    """Return the seconds of data, all forward passes, each layer of one backward pass
    (in backward order), and the optimizer, without communication.
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
    """Return the payload of the all-reduce of ``bucket``."""
    return bucket.num_bytes / (2 if setting.sync == FP16 else 1)


def on_computing(setting: Setting, on: Overheads) -> Array:
    """Return the seconds by which each bucket delays concurrent computation when no
    core is idle; the last bucket delays nothing.
    """
    *others, _ = buckets(layers_of(setting), setting.bucket_cap_mb)
    costs = [
        on.hidden_byte * sent_bytes(setting, one) + on.hidden_bucket for one in others
    ]
    return np.array([*costs, 0.0])


def ready_at(
    handed_over: Sequence[Bucket], layers: Array, delays: Array
) -> list[float]:
    """Return the seconds from the start of a backward pass until each bucket is ready.

    ``layers`` are the seconds of each layer of that pass; a bucket delays the layers
    after it by its share of ``delays``.
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
    """Return the seconds from when the last bucket is ready until all are reduced.
    All-reduces run in sequence, each starting when its bucket is ready.
    """
    # idle since the previous step
    free = -math.inf
    for at, size in zip(ready, num_bytes, strict=True):
        start = max(at, free)
        free = start + link.seconds(size, world_size, start - free)
    return free - ready[-1]
