"""Where two runs diverge, and the probable cause, from what each recorded.

The first step that differs, and there the first thing: data, gradients, parameters,
buffers. What fits no pattern (minitrain/compare/causes.py) has the cause "unknown".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from minitrain.compare.align import combination
from minitrain.compare.causes import (
    UNKNOWN,
    cause_in_buffers,
    missing_in,
    near,
    of_multiple,
    of_rate,
    of_weights,
)
from minitrain.compare.difference import NOT_RESTORED
from minitrain.compare.tolerances import CLOSE
from minitrain.proof.first_difference import Rows, first_difference, of_kind

What = Literal["data", "gradients", "parameters", "buffers"]
Tensors = Mapping[str, Tensor]
State = Mapping[str, Tensors]
# the cause, asked for by step, thing and ranks that differ
Explain = Callable[[int, What, list[int]], str]
OTHER_START = "other weights before the step"


@dataclass(frozen=True)
class Values:
    """The tensors of one step: of each rank of the run, and of the replay.

    Each has ``before`` (parameters), ``gradients`` and ``after`` (parameters); the
    replay also ``own``: each rank's share of the right gradient, which is their sum.
    ``shares`` are the ranks' shares of the targets.
    """

    ranks: Sequence[Mapping[str, Any]]
    replay: Mapping[str, Any]
    shares: Sequence[float]


@dataclass(frozen=True)
class Divergence:
    """The first difference; ``ranks`` are those that differ from the replay."""

    step: int
    what: What
    tensor: str
    ranks: list[int] = field(default_factory=list)
    cause: str = UNKNOWN

    def __str__(self) -> str:
        where = f"step {self.step}: {self.what}"
        if self.tensor:
            where += f", tensor {self.tensor}"
        if self.ranks:
            where += f", rank {_names(self.ranks)}"
        return f"{where}; probable cause: {self.cause}"


def locate(run: Rows, replay: Rows, explain: Explain) -> Divergence | None:
    """The first difference between a run and its replay, from their recorded hashes.

    ``explain`` is asked for its cause. None where nothing differs.
    """
    batches, wanted = (
        {row["step"]: row for row in of_kind(rows, "batch")} for rows in (run, replay)
    )
    other = [
        step
        for step in sorted(batches.keys() & wanted.keys())
        if batches[step]["sha256"] != wanted[step]["sha256"]
    ]
    found = first_difference(run, replay)
    if other and (found is None or other[0] <= found.step):
        step, batch, right = other[0], batches[other[0]], wanted[other[0]]
        cause = cause_in_data(batch, right, [*batches.values()])
        return Divergence(step, "data", "", _ranks_that_differ(batch, right), cause)
    if found is None:
        return None
    cause = explain(found.step, found.what, found.ranks)
    return Divergence(found.step, found.what, found.tensor, found.ranks, cause)


def _ranks_that_differ(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[int]:
    pairs = zip(ours["ranks"], theirs["ranks"], strict=False)
    return [rank for rank, (a, b) in enumerate(pairs) if a != b]


def cause_in_data(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], batches: Rows
) -> str:
    """Why a global batch has other samples than it should."""
    if ours["repeated"] > theirs["repeated"]:
        count = ours["repeated"] - theirs["repeated"]
        return f"samples that are duplicated ({count})"
    for before in batches:
        if before["step"] < ours["step"] and before["sha256"] == ours["sha256"]:
            step = before["step"]
            return f"the batch of step {step} again: no new order for this epoch"
    if len(ours["ranks"]) != len(theirs["ranks"]):
        return "other samples, on unlike numbers of ranks"
    ranks = _ranks_that_differ(ours, theirs)
    if len(ranks) < len(theirs["ranks"]):
        return f"rank {_names(ranks)} reads other samples than its own"
    return "another order of the samples, on all ranks"


def cause_of(what: What, ranks: list[int], values: Values) -> str:
    """Why ``ranks`` differ from the replay, from the tensors of that step: a clause, or
    UNKNOWN. ``what`` is anything but ``data``.
    """
    if what == "buffers":
        return cause_in_buffers(ranks, len(values.ranks))
    if what == "parameters":
        return cause_in_step(values.ranks[ranks[0]], values.replay, len(values.ranks))
    return cause_in_gradients(ranks, values)


def cause_in_step(
    ours: State, theirs: State, world_size: int, otherwise: str = NOT_RESTORED
) -> str:
    """Why two states have other parameters after a step with the same gradients: each
    has the parameters ``before`` and ``after`` it; ``otherwise`` where no factor tells.
    """
    before, after = (
        [_flat(state[when]) for state in (ours, theirs)] for when in ("before", "after")
    )
    if len({len(one) for one in (*before, *after)}) > 1:
        return UNKNOWN
    if not torch.equal(*before):
        return OTHER_START
    moved, right = (new - old for new, old in zip(after, before, strict=True))
    (factor,), rest = combination(moved, [right])
    if rest >= CLOSE:
        return otherwise
    if near(factor, 1):
        return UNKNOWN
    if why := of_rate(factor, world_size):
        return f"the {why}"
    return f"a step {factor:.3g} times as long: another learning rate"


def cause_in_gradients(ranks: list[int], values: Values) -> str:
    """Why synchronized gradients are wrong."""
    starts = [_flat(rank["before"]) for rank in values.ranks]
    right = _flat(values.replay["before"])
    elsewhere = [rank for rank, s in enumerate(starts) if not torch.equal(s, right)]
    if elsewhere:
        start = f"rank {_names(elsewhere)} starts from other weights"
        return f"{start}: rank 0's were not broadcast"
    own = [_flat(one) for one in values.replay["own"]]
    found = {rank: _flat(values.ranks[rank]["gradients"]) for rank in ranks}
    if any(len(gradient) != len(own[0]) for gradient in found.values()):
        return UNKNOWN
    # of the ranks' own means, which the right gradient adds up by their shares
    parts = [g / (share or 1) for g, share in zip(own, values.shares, strict=True)]
    fits = {rank: combination(gradient, parts) for rank, gradient in found.items()}
    if all(_only(rank, fit) for rank, fit in fits.items()):
        return f"ranks that keep their own gradients: {_names(ranks)}"
    factors, rest = fits[ranks[0]]
    on_all = len(ranks) == len(values.ranks)
    if on_all and rest < CLOSE and (cause := _of_factors(factors, values.shares)):
        return cause
    return _low_precision(found[ranks[0]], _flat(values.replay["gradients"]))


def _of_factors(factors: Sequence[float], shares: Sequence[float]) -> str:
    if missing := missing_in(factors, shares):
        return f"the gradient of rank {_names(missing)} is missing from the sum"
    if (cause := of_weights(factors, shares)[0]) or min(shares) == 0:
        return cause
    factor = factors[0] / shares[0]
    if near(factor, 1):
        return ""
    why = of_multiple(factor, len(factors)) or "a scaled loss"
    return f"{factor:.3g} times the mean: {why}"


def _only(rank: int, fit: tuple[list[float], float]) -> bool:
    factors, rest = fit
    others = [abs(factor) for r, factor in enumerate(factors) if r != rank]
    return (
        rest < CLOSE and max(others, default=0.0) < CLOSE and abs(factors[rank]) > CLOSE
    )


def cause_of_pair(
    ours: Tensors, theirs: Tensors, ranks: list[int], world_size: int
) -> str:
    """Why two runs have other gradients, where only those of rank 0 are kept."""
    if 0 not in ranks:
        return f"rank {_names(ranks)} only: it trains alone, or has other weights"
    a, b = _flat(ours), _flat(theirs)
    if a.shape != b.shape:
        return UNKNOWN
    (factor,), rest = combination(a, [b])
    if rest < CLOSE and not near(factor, 1):
        why = of_multiple(factor, world_size) or "a scaled loss"
        return f"{factor:.3g} times as large: {why}"
    return _low_precision(a, b)


def _low_precision(found: Tensor, right: Tensor) -> str:
    for dtype in (torch.bfloat16, torch.float16):
        lower = dtype.itemsize < found.element_size()
        if lower and _passes(found, dtype) and not _passes(right, dtype):
            name = str(dtype).removeprefix("torch.")
            return f"reduced in lower precision ({name})"
    gap = float((found.double() - right.double()).norm())
    if gap <= 1e-5 * float(right.double().norm()):
        return "rounding only: another order of summation, or other threads"
    return UNKNOWN


def _passes(values: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(values.to(dtype).to(values.dtype), values)


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def _names(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
