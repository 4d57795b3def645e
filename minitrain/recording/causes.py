"""Why gradients, or parameters, are not the same on all ranks: the probable cause.

A sketch is linear, so a gradient that is a combination of the ranks' own is so in its
sketch. What the factors are tells most faults apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minitrain.recording.alarm import (
    Rows,
    all_names,
    first_unlike,
    hashes,
    in_ranks,
    unlike,
)

UNKNOWN = "unknown"
# of a tensor: what other hardware, or other threads, may make of the same sum
ROUNDING = 1e-5
APART = "apart by rounding"
# relative, of what is left of a fit: room for what is kept in bfloat16
CLOSE = 1e-2
# how much better a fit must be to be taken instead of another
BETTER = 10
# smallest by largest singular value: beyond it the factors say nothing
CONDITION = 1e-2


@dataclass(frozen=True)
class Sketches:
    """Sketches of some tensors of one step, one row a rank, with the same columns."""

    gradients: Tensor
    own: Tensor

    @property
    def mean(self) -> Tensor:
        """Return what data parallelism makes of the ranks' own gradients."""
        return self.own.mean(0)


def comparable(rows: Rows) -> list[str]:
    """Return tensors of which every rank has its own gradient and the one it got."""
    tables = [row.get(kind, {}) for row in rows for kind in ("own", "gradients")]
    return [name for name in tables[1] if all(name in table for table in tables)]


def sketches(rows: Rows, names: Sequence[str]) -> Sketches | None:
    """Return those of ``names``; None if there are none, or one is not finite."""
    if not names:
        return None
    of = [[row["gradients"][n]["sketch"] for n in names] for row in rows]
    own = [[row["own"][n] for n in names] for row in rows]
    both = torch.from_numpy(np.array([of, own], np.float64)).flatten(2)
    return Sketches(*both) if both.isfinite().all() else None


def times(target: Tensor, part: Tensor) -> tuple[float, float]:
    """Return the factor that brings ``part`` nearest to ``target``, and the rest as a
    share of ``target``.
    """
    square, size = float(part @ part), float(target.norm())
    if not square or not size:
        return 0.0, 0.0 if not size else 1.0
    factor = float(target @ part) / square
    return factor, float((target - factor * part).norm()) / size


def factors(target: Tensor, own: Tensor) -> list[float] | None:
    """Return the factor of each rank's own gradient in ``target``; None if they do not
    explain it, or are too alike to be told apart.
    """
    singular = torch.linalg.svdvals(own)
    apart = own.shape[0] <= own.shape[1] and singular[-1] > CONDITION * singular[0]
    if not apart or not target.norm():
        return None
    found = torch.linalg.lstsq(own.T, target[:, None]).solution.flatten()
    rest = (found @ own - target).norm() / target.norm()
    return found.tolist() if rest < CLOSE else None


def lacking(found: Sequence[float]) -> list[int]:
    """Return ranks whose gradient a sum with these factors lacks, if the others are in
    it alike; none if it has another pattern.
    """
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
    if without := _without(rows, differ, ranks):
        return without
    names = [name for name in comparable(rows) if name in {*differ}]
    found = sketches(rows, names)
    if found is None:
        return f"unlike those of the others ({_share(rows, differ)})", UNKNOWN
    alone = [rank for rank in range(len(rows)) if _keeps_its_own(found, rank)]
    if {*ranks} <= {*alone}:
        what = f"each keeps its own ({_share(rows, differ)})"
        return what, _not_synchronized(rows, before, differ, alone)
    usual = next(rank for rank in range(len(rows)) if rank not in ranks)
    rank = ranks[0]
    factor, rest = times(found.gradients[rank], found.gradients[usual])
    if rest < ROUNDING and abs(factor - 1) < ROUNDING:
        return APART, "other hardware, threads or libraries on ranks"
    if rest < CLOSE:
        what = f"{factor:.3g} times that of rank {usual}, and else the same"
        return what, "clipped, or scaled, by a number of its own: that of all is needed"
    return _incomplete(found, [*ranks, usual])


def _keeps_its_own(found: Sketches, rank: int) -> bool:
    # or a multiple of it
    gradient = found.gradients[rank]
    _, rest = times(gradient, found.own[rank])
    _, of_mean = times(gradient, found.mean)
    return rest < CLOSE and BETTER * rest < of_mean


def of_unlike_parameters(rows: Rows, before: Rows | None, name: str) -> tuple[str, str]:
    """Return since when parameters differ, beyond the gradients, and why."""
    _, ranks = first_unlike([row.get("before", {}) for row in rows])
    step = rows[0]["step"]
    if ranks and before is None:
        return "unlike those of the others before the step", not_broadcast(step)
    if ranks and before:
        last = before[0]["step"]
        if last + 1 == step:
            return (
                f"unlike those of the others since step {last} was done",
                "changed between two steps, and not by this optimizer",
            )
        return (
            f"unlike those of the others since a step after {last}",
            "steps between that were not recorded: every=1 finds the step and its "
            "cause",
        )
    if unlike([hashes(row, "gradients").get(name) for row in rows]):
        what = "unlike those of the others since this step"
        return what, "the optimizer averages, or shares, other tensors and not this one"
    what = "unlike those of the others since this step, whose gradients are the same"
    tables = [row["moments"] for row in before or ()]
    # ranks may divide it
    of_all = [n for n in all_names(tables) if all(n in table for table in tables)]
    _, moments = first_unlike([{n: table[n] for n in of_all} for table in tables])
    if moments:
        return what, f"the optimizer's state of {in_ranks(moments)} is another one"
    if step == 0:
        return what, "the optimizer is another one: its settings, or its kind"
    return what, "the optimizer's state is another one: restored on some ranks only?"


def not_broadcast(step: int) -> str:
    """Return why ranks do not begin with the same weights."""
    if step == 0:
        return "rank 0's weights are not broadcast, or were changed after that"
    return "weights that were loaded, or changed, on some ranks only"


def _without(
    rows: Rows, differ: Sequence[str], ranks: Sequence[int]
) -> tuple[str, str] | None:
    have = [differ[0] in row.get("gradients", {}) for row in rows]
    if all(have):
        return None
    none = [rank for rank, has in enumerate(have) if not has]
    what = "there is none, but the other ranks have one"
    if not {*none} & {*ranks}:
        what = f"none on {in_ranks(none)}"
    return what, "a part of the model that only some ranks use, without a wrapper"


def _not_synchronized(
    rows: Rows, before: Rows | None, differ: Sequence[str], alone: Sequence[int]
) -> str:
    row = rows[alone[0]]
    wrapper = row.get("wrapper", "")
    if not wrapper:
        if before and any(one.get("wrapper") for one in before):
            return "the model is called without its wrapper, unlike before"
        return "the model is not wrapped, or called without its wrapper"
    if row.get("synced") is False:
        return f"{wrapper} did not synchronize in the last pass: no_sync was on"
    if row.get("group") == 1:
        return f"{wrapper} averages in a group of one rank"
    replaced = row.get("replaced", {})
    if any(name in replaced for name in differ):
        return _replaced(wrapper, replaced, differ)
    if spare := row.get("without_gradient", []):
        return (
            f"{wrapper} waits for {spare[0]}, which has no gradient: not used in the "
            "forward pass"
        )
    if len(alone) < len(rows):
        return "nothing came from the others: a transfer that was lost"
    was = before[0] if before else row
    trained = {*was["gradients"], *was["without_gradient"]}
    if len(differ) < len(row["gradients"]) or not trained & {*differ}:
        return (
            f"trainable only after {wrapper} was built, which does not know it, or "
            "ignored by it"
        )
    if row.get("group") is None:
        return f"{wrapper} averages in a group of one rank"
    return f"a communication hook of {wrapper} that reduces nothing"


def _replaced(wrapper: str, by_name: Mapping[str, str], differ: Sequence[str]) -> str:
    name = next(name for name in differ if name in by_name)
    since = f"after {wrapper} took the model"
    if by_name[name]:
        return f"{name} was tied to {by_name[name]}, and was replaced {since}"
    if {*differ} <= {*by_name}:
        return f"parameters that were replaced {since}"
    return f"{wrapper} waits for the {name} that was replaced after it took the model"


def _incomplete(found: Sketches, ranks: Sequence[int]) -> tuple[str, str]:
    # one of these ranks may have got less than the others
    for rank in ranks:
        parts = factors(found.gradients[rank], found.own)
        if parts and (lacks := lacking(parts)):
            who = in_ranks(lacks)
            what = f"rank {rank} has a sum that lacks the gradient of {who}"
            return what, "a transfer that was lost, or a rank that was left out"
    what = "no rank's own gradient, and no sum of them"
    return what, "parts that are mixed up (other order of the buckets), or damaged"


def _share(rows: Rows, differ: Sequence[str]) -> str:
    return f"{len(differ)} of {len(rows[0].get('gradients', {}))} tensors"
