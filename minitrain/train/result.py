"""What one rank knows after training, and what the ranks know together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minitrain.train.recorder import ledger_entry

Row = dict[str, Any]


@dataclass
class TrainResult:
    """What one rank knows after training; every list has one entry per step.

    ``losses`` are shares of the mean loss over all real targets of the global batch,
    one for each micro-batch of this rank: their sum over all ranks is that mean.
    ``digests`` name the samples. ``timings`` and ``hashes`` are rows as
    :mod:`~minitrain.train.clock` and :mod:`~minitrain.train.recorder` describe them,
    and so are the tensors that were ``sampled``. ``probes`` has the losses of
    :mod:`~minitrain.train.eval_pass` by name, at ``probe_step``.
    """

    losses: list[list[float]] = field(default_factory=list)
    digests: list[tuple[int, ...]] = field(default_factory=list)
    timings: list[Row] = field(default_factory=list)
    hashes: list[Row] = field(default_factory=list)
    sampled: dict[str, Tensor] = field(default_factory=dict)
    probes: dict[str, list[float]] = field(default_factory=dict)
    probe_step: int = -1


def mean_losses(results: Iterable[TrainResult]) -> list[float]:
    """The loss of every step over all ranks, whatever the order of its shares."""
    by_step = zip(*(result.losses for result in results), strict=True)
    return [mean_loss(step) for step in by_step]


def mean_loss(shares: Iterable[Sequence[float]]) -> float:
    """The sum of the shares that each rank computed, in the unit of the loss."""
    # exactly rounded, it does not depend on how the batch was cut over ranks
    return math.fsum(share for rank in shares for share in rank)


def rows_of(results: Sequence[TrainResult]) -> list[Row]:
    """The data ledger (a row for every step's global batch), then each rank's rows and
    the losses of the probes.
    """
    by_step = zip(*(result.digests for result in results), strict=True)
    batches = [
        {"kind": "batch", "step": step, **ledger_entry(digests)}
        for step, digests in enumerate(by_step)
    ]
    tensors = [
        {"rank": rank, **row} for rank, one in enumerate(results) for row in one.hashes
    ]
    step = results[0].probe_step
    probes = [
        {"kind": "probe", "name": name, "step": step, "loss": mean_loss(shares)}
        for name in results[0].probes
        for shares in [[result.probes[name] for result in results]]
    ]
    return batches + tensors + probes
