"""Why gradients are not the same on all ranks: the probable cause, from the factors
with which the ranks' own gradients are in them.
"""

from collections.abc import Sequence

from torch import Tensor

from minitrain.recording.alarm import Row, Rows, in_ranks
from minitrain.recording.sketches import as_multiple, comparable, fit, sketches

UNKNOWN = "unknown"
# of a tensor: what other hardware, or other threads, may make of the same sum
ROUNDING = 1e-5
APART = "apart by rounding"
# relative, of what is left of a fit: room for what is kept in bfloat16
CLOSE = 1e-2
# how much better a fit must be to be taken instead of another
BETTER = 10
# beyond this condition number factors say nothing
MOST_ALIKE = 100.0


def factors(target: Tensor, own: Tensor) -> list[float] | None:
    """Return the factor of each rank's own gradient in ``target``; None if they do not
    explain it, or are too alike to be told apart.
    """
    # with as many numbers any sum can be written, but seldom without one of them
    found = fit(target, [*own], MOST_ALIKE, least=1)
    return found[0] if found and found[1] < CLOSE else None


def lacking(target: Tensor, own: Tensor) -> list[int]:
    """Return ranks whose gradient ``target`` lacks, if it is a sum with the others in
    it alike; none if it has another pattern.
    """
    found = factors(target, own) or [0.0]
    largest = max(map(abs, found))
    lacks = [r for r, factor in enumerate(found) if abs(factor) < CLOSE * largest]
    there = [factor for rank, factor in enumerate(found) if rank not in lacks]
    alike = max(there) - min(there) <= 5 * CLOSE * largest
    return lacks if alike else []


def of_unlike_gradients(
    rows: Rows, before: Rows | None, differ: Sequence[str], ranks: Sequence[int]
) -> tuple[str, str]:
    """Return how the gradients of ``ranks`` differ, and why; ``differ`` are the tensors
    that are not the same on all.
    """
    none = [rank for rank, row in enumerate(rows) if differ[0] not in row["gradients"]]
    if none:
        cause = "a part of the model that only some ranks use, without a wrapper"
        return f"none on {in_ranks(none)}", cause
    found = sketches(rows, [name for name in comparable(rows) if name in {*differ}])
    share = f"{len(differ)} of {len(rows[0]['gradients'])} tensors"
    if found is None:
        return f"unlike those of the others ({share})", UNKNOWN
    alone = [r for r, row in enumerate(rows) if _keeps_its_own(row, *found.own_in(r))]
    if {*ranks} <= {*alone}:
        cause = _not_synchronized(rows, before, differ, alone)
        return f"each keeps its own ({share})", cause
    usual = next(rank for rank in range(len(rows)) if rank not in ranks)
    factor, rest = as_multiple(found.gradients[ranks[0]], found.gradients[usual])
    if rest < ROUNDING and abs(factor - 1) < ROUNDING:
        return APART, "other hardware, threads or libraries on ranks"
    if rest < CLOSE:
        what = f"{factor:.3g} times that of rank {usual}, and else the same"
        return what, "clipped, or scaled, by a number of its own: that of all is needed"
    # one of these ranks may have got less than the others
    for rank in [*ranks, usual]:
        if lacks := lacking(found.gradients[rank], found.own):
            what = f"rank {rank} has a sum that lacks the gradient of {in_ranks(lacks)}"
            return what, "a transfer that was lost, or a rank that was left out"
    what = "no rank's own gradient, and no sum of them"
    return what, "parts that are mixed up (other order of the buckets), or damaged"


def _keeps_its_own(row: Row, factor: float, rest: float, of_mean: float) -> bool:
    # or a multiple of it; where a wrapper averages, all ranks may have had the same
    least = ROUNDING if row["wrapper"] and row["synced"] else 0.0
    return rest < CLOSE and max(BETTER * rest, least) < of_mean


def _not_synchronized(
    rows: Rows, before: Rows | None, differ: Sequence[str], alone: Sequence[int]
) -> str:
    row = rows[alone[0]]
    wrapper, replaced = row["wrapper"], row.get("replaced", {})
    if not wrapper:
        had = any(one["wrapper"] for one in before or ())
        return f"the model is called without a wrapper{', unlike before' * had}"
    if row["synced"] is False:
        return f"{wrapper} did not synchronize in the last pass: no_sync was on"
    if row["group"] == 1:
        return f"{wrapper} averages in a group of one rank"
    if name := next((name for name in differ if name in replaced), ""):
        tied = f"tied to {replaced[name]}, and was " if replaced[name] else ""
        return f"{name} was {tied}replaced after {wrapper} took the model"
    if spare := row["without_gradient"]:
        return f"{wrapper} waits for {spare[0]}, which has no gradient (not used?)"
    if len(alone) < len(rows):
        return "nothing came from the others: a transfer that was lost"
    was = before[0] if before else row
    trained = {*was["gradients"], *was["without_gradient"]}
    if len(differ) < len(row["gradients"]) or not trained & {*differ}:
        return f"trainable only after {wrapper} was built, or ignored by it"
    if row["group"] is None:
        return f"{wrapper} averages in a group of one rank"
    return f"a communication hook of {wrapper} that reduces nothing"
