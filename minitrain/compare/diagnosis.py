"""First difference between a run and its replay (or a second run), and its cause.

The order at each step: data, gradients, parameters, buffers. The causes are the same as
for recordings (gradient_causes.py, step_causes.py), but are found in the tensors
instead of their sketches (short random projections). ``side``: name of a run in causes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitrain.compare.difference import UNKNOWN, Cause, Difference, What, Why, why
from minitrain.compare.gradient_causes import (
    cause_in_factors,
    missing_in,
    multiple,
    rate_by_size,
    scaled,
)
from minitrain.compare.limits import CLOSE
from minitrain.compare.step_causes import cause_in_buffers
from minitrain.proof.evidence import Rows, first_difference, of_kind
from minitrain.recording.sketches import combination

Tensors = Mapping[str, Tensor]
State = Mapping[str, Tensors]
# gets the step, the kind of thing and the ranks that differ
Explain = Callable[[int, What, list[int]], Why]
RUN = "the run"


@dataclass(frozen=True)
class Values:
    """The tensors of one step, of each rank of the run and of the replay.

    Each has ``before`` (parameters), ``gradients`` and ``after`` (parameters); the
    replay also ``own``: a gradient for each rank; their sum is the right gradient.
    ``shares``: of each rank in the targets. A second run in its place has no ``own``.
    """

    ranks: Sequence[Mapping[str, Any]]
    replay: Mapping[str, Any]
    shares: Sequence[float]


def locate(
    run: Rows, replay: Rows, explain: Explain, side: str = RUN
) -> Difference | None:
    """Return the first difference between the recorded hashes of a run and its replay,
    or None. ``explain(step, what, ranks)`` returns the cause, except for data; ``side``
    is the name of the run in causes.
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
        cause = cause_in_run_data(batch, right, [*batches.values()], side)
        ranks = tuple(_ranks_that_differ(batch, right))
        return Difference(step, What.DATA, cause, ranks=ranks)
    if found is None:
        return None
    what = What(found.what)
    cause = explain(found.step, what, found.ranks)
    ranks = tuple(found.ranks)
    return Difference(found.step, what, cause, tensor=found.tensor, ranks=ranks)


def _ranks_that_differ(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[int]:
    pairs = zip(ours["ranks"], theirs["ranks"], strict=False)
    return [rank for rank, (a, b) in enumerate(pairs) if a != b]


def cause_in_run_data(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], batches: Rows, side: str = RUN
) -> Why:
    """Return why a global batch has other samples in the run than in the replay, given
    its rows ``ours`` and ``theirs``. ``batches``: rows of all batches of the run, which
    may repeat an earlier one. (For recordings: step_causes.cause_in_data.)
    """
    if (count := ours["repeated"] - theirs["repeated"]) > 0:
        return why(Cause.REPEATED, side=side, count=count)
    for before in batches:
        if before["step"] < ours["step"] and before["sha256"] == ours["sha256"]:
            return why(Cause.BATCH_AGAIN, side=side, step=before["step"])
    ranks = _ranks_that_differ(ours, theirs)
    if len(ranks) < len(theirs["ranks"]) == len(ours["ranks"]):
        return why(Cause.SAMPLES, who=ranks)
    return why(Cause.ORDER)


def cause_of(
    what: What,
    ranks: list[int],
    values: Values,
    sides: tuple[str, str] = (RUN, "the replay"),
) -> Why:
    """Return why ``ranks`` differ from the replay in ``what`` (not data) at one step,
    given its tensors ``values``; ``sides``: the names of the run and the replay.
    """
    if what == What.BUFFERS:
        return cause_in_buffers(ranks, len(values.ranks))
    if what == What.GRADIENTS:
        return _of_gradients(ranks, values, sides)
    ours, theirs = values.ranks[ranks[0]], values.replay
    return _of_step(ours, theirs, len(values.ranks), sides[0])


def _of_step(ours: State, theirs: State, world_size: int, side: str) -> Why:
    # why parameters differ after a step with the same gradients
    before, after = (
        [flat(state[when]) for state in (ours, theirs)] for when in ("before", "after")
    )
    if len({len(one) for one in (*before, *after)}) > 1:
        return UNKNOWN
    if not torch.equal(*before):
        return why(Cause.OTHER_START)
    moved, right = (new - old for new, old in zip(after, before, strict=True))
    (factor,), rest = combination(moved, [right])
    if rest >= CLOSE:
        return why(Cause.OPTIMIZER)
    if abs(factor - 1) <= CLOSE:
        return UNKNOWN
    by_size = rate_by_size(factor, (1, world_size), ("", side))
    return by_size or why(Cause.STEPS, side=side, factor=factor)


def _of_gradients(ranks: list[int], values: Values, sides: tuple[str, str]) -> Why:
    # fit the synchronized gradients of ``ranks`` by a weighted sum of the ranks' own
    # gradients; the weights show the cause
    wanted = flat(values.replay["gradients"])
    found = {rank: flat(values.ranks[rank]["gradients"]) for rank in ranks}
    if any(len(gradient) != len(wanted) for gradient in found.values()):
        return UNKNOWN
    right = flat(values.replay["before"])
    starts = [flat(rank["before"]) for rank in values.ranks]
    elsewhere = [rank for rank, s in enumerate(starts) if not torch.equal(s, right)]
    if "own" not in values.replay:
        if elsewhere:
            return why(Cause.OTHER_START)
        return _of_pair(found[ranks[0]], wanted, len(values.ranks), sides[0])
    if elsewhere:
        return why(Cause.NOT_BROADCAST, ranks=elsewhere)
    # the right gradient is the sum of the ranks' means, weighted by their shares
    own = zip(map(flat, values.replay["own"]), values.shares, strict=True)
    parts = [gradient / (share or 1) for gradient, share in own]
    fits = {rank: combination(gradient, parts) for rank, gradient in found.items()}
    if all(_only(rank, fit) for rank, fit in fits.items()):
        return why(Cause.KEEP_OWN, ranks=ranks)
    factors, rest = fits[ranks[0]]
    cause = None
    if len(ranks) == len(values.ranks) and rest < CLOSE:
        cause = _of_factors(factors, values.shares, sides)
    return cause or _low_precision(found[ranks[0]], wanted, sides[0])


def _of_pair(found: Tensor, wanted: Tensor, world_size: int, side: str) -> Why:
    # a second run replaces the replay: only the gradients of rank 0 are known
    (factor,), rest = combination(found, [wanted])
    if rest < CLOSE and abs(factor - 1) > CLOSE:
        return scaled(factor, multiple(factor, world_size), side=side)
    return _low_precision(found, wanted, side)


def _of_factors(
    factors: Sequence[float], shares: Sequence[float], sides: tuple[str, str]
) -> Why | None:
    if missing := missing_in(factors, shares):
        return why(Cause.MISSING, side=sides[0], ranks=missing)
    if cause := cause_in_factors(factors, shares, sides):
        return cause
    if min(shares) == 0 or abs(factors[0] / shares[0] - 1) <= CLOSE:
        return None
    factor = factors[0] / shares[0]
    by = multiple(factor, len(factors))
    return scaled(factor, by, of="the mean", side=sides[0])


def _only(rank: int, fit: tuple[list[float], float]) -> bool:
    factors, rest = fit
    others = [abs(factor) for r, factor in enumerate(factors) if r != rank]
    is_own = rest < CLOSE < abs(factors[rank])
    return is_own and max(others, default=0.0) < CLOSE


def _low_precision(found: Tensor, right: Tensor, side: str) -> Why:
    for dtype in (torch.bfloat16, torch.float16):
        lower = dtype.itemsize < found.element_size()
        if lower and _passes(found, dtype) and not _passes(right, dtype):
            name = str(dtype).removeprefix("torch.")
            return why(Cause.REDUCED, side=side, dtype=name)
    gap = float((found.double() - right.double()).norm())
    if gap <= 1e-5 * float(right.double().norm()):
        return why(Cause.ROUNDING)
    return UNKNOWN


def _passes(values: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(values.to(dtype).to(values.dtype), values)


def flat(tensors: Tensors) -> Tensor:
    """Return all elements of ``tensors`` as one vector."""
    parts = [tensor.flatten() for tensor in tensors.values()]
    return torch.cat(parts) if parts else torch.empty(0)
