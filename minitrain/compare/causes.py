"""Why gradients of two recordings differ, from their sketches: the probable cause.

A wrong gradient is written as a combination of what the ranks computed on their own,
and so is the right one; how the factors of the two compare tells most faults apart.
Each cause comes with whether it is sure: a pattern that rounding does not make.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from torch import Tensor

from minitrain.compare.align import (
    Place,
    Row,
    Rows,
    Sketches,
    common,
    fit,
    joined,
    length,
    same_samples,
    samples,
    sketches,
)
from minitrain.compare.diagnosis import CLOSE, UNKNOWN
from minitrain.compare.tolerances import Measured
from minitrain.recording.alarm import in_ranks

# of a whole gradient: what one in 16 bits is off
LOW_PRECISION = (2e-4, 2e-2)
# what is taken off a loss before the step: a power of two, at least
LEAST_LOSS_SCALE = 256
LOWER = "computed in lower precision? (the gap is that of bfloat16, float16 or TF32)"
MEANS = "a mean of means: each rank counts the same, however many targets it has"
MEANS_OF_PASSES = (
    "a mean of micro-batch means: each pass counts the same, however many targets it "
    "has (divide by the targets of all passes and ranks)"
)
OTHERS = "the ranks compute others: weights, loss, precision or statistics"
NOT_A_MEAN = (
    "another loss, or the loss is not a mean over samples: ranks see fewer negatives "
    "(contrastive) or gather them without gradients"
)
BATCH_NORM = (
    "training changes buffers (batch norm?): each rank may normalize by its own samples"
)


@dataclass(frozen=True)
class Cause:
    """A clause, and whether no rounding looks like it. ``what`` and ``ranks`` are set
    where something before the gradients is what differs first.
    """

    clause: str = UNKNOWN
    sure: bool = False
    what: str = ""
    ranks: tuple[int, ...] = ()
    # the gap is that of 16 bits, which a twin's start does not show
    coarse: bool = False
    # a combination of the gradients of the other run: then the samples are the same
    pattern: bool = False
    # only the weights of the ranks differ, and these add up to the same
    weights: bool = False


def cause_in_gradients(place: Place, found: Measured, here: bool) -> Cause:
    """Why gradients are beyond the limits at ``place``; ``here`` says that the weights
    were alike before it.
    """
    a, b = place.a[found.pairs[0][0]], place.b[found.pairs[0][1]]
    names = common(a["gradients"], b["gradients"])
    if without := _without(place, found.tensor):
        return without
    ours, theirs = (joined(sketches(r, "gradients"), names) for r in (a, b))
    for side, gradient in (("A", ours), ("B", theirs)):
        if not torch.isfinite(gradient).all():
            return Cause(f"not finite in {side}", sure=True)
    if place.draws and not place.same_size:
        return Cause(
            "the forward pass draws random numbers (dropout?), other ones with another "
            "number of ranks"
        )
    own = cause_in_own(place) if place.same_size and here else None
    if own and own.what:
        weighted = _of_parts(place, found, names)
        return weighted if weighted and weighted.weights else own
    scaled = fit(theirs, [ours])
    if scaled and scaled[1] < CLOSE:
        (factor,), rest = scaled
        if abs(factor - 1) > max(CLOSE, 10 * rest):
            return Cause(_of_factor(factor, place, found), sure=True, pattern=True)
    if cause := _of_parts(place, found, names):
        return cause
    if not here:
        return Cause("the weights part at a step between (every=1 finds it)")
    return _of_size(place, found, own is not None)


def _without(place: Place, name: str) -> Cause | None:
    """Where ranks of one run have no gradient of a tensor, and others have one."""
    lacks = [
        [rank for rank, row in rows.items() if name not in row["gradients"]]
        for rows in (place.a, place.b)
    ]
    on_all = [len(lacks[0]) == len(place.a), len(lacks[1]) == len(place.b)]
    if (place.same_size and lacks[0] == lacks[1]) or all(on_all) or not any(lacks):
        return None
    side, rows = ("B", place.b) if lacks[1] else ("A", place.a)
    ranks = lacks[side == "B"]
    where = "" if len(ranks) == len(rows) else f" on {in_ranks(ranks)}"
    return Cause(f"{name} has no gradient in {side}{where}", sure=True)


def _of_size(place: Place, found: Measured, own_alike: bool) -> Cause:
    """What no sum of gradients explains: from how far it is apart, and where."""
    few = found.num_beyond_quick
    if 2 * few <= found.num:
        return Cause(f"{few} of {found.num} tensors alone{_times(place, found)}")
    if found.trains_buffers and not place.same_size:
        return Cause(BATCH_NORM)
    if LOW_PRECISION[0] <= found.whole <= LOW_PRECISION[1]:
        if own_alike and max(place.world_sizes) > 1:
            return Cause("reduced in lower precision?", sure=True)
        return Cause(LOWER, sure=own_alike, coarse=True)
    if own_alike:
        return Cause(
            "the ranks' own gradients are alike: they are put together otherwise"
        )
    if not place.same_size:
        known = all(row["own"] for row in (*place.a.values(), *place.b.values()))
        is_read = samples(place.a) and same_samples(place.a, place.b)
        return Cause(NOT_A_MEAN if known and is_read else OTHERS)
    return Cause()


def _times(place: Place, found: Measured) -> str:
    rows = place.a[found.pairs[0][0]], place.b[found.pairs[0][1]]
    a, b = (joined(sketches(row, "gradients"), [found.tensor]) for row in rows)
    fitted = fit(b, [a])
    if fitted is None or fitted[1] >= CLOSE:
        return ""
    return f", {found.tensor} {fitted[0][0]:.3g} times as large"


def cause_in_own(place: Place) -> Cause | None:
    """Where the ranks' own gradients, before any reduction, are unlike; None where not
    all ranks have them, a Cause without ``what`` where they are alike.
    """
    unlike, factors, size = [], [], 0.0
    for rank, _ in place.pairs:
        a, b = place.a[rank], place.b[rank]
        names = common(a["own"], b["own"], a["gradients"], b["gradients"])
        if not names or len(names) < len(common(a["gradients"], b["gradients"])):
            return None
        if not same_samples({0: a}, {0: b}):
            # dealt to other ranks, and put together the same
            return None
        ours, theirs = (joined(row["own"], names) for row in (a, b))
        size = max(size, *(length(joined(a["own"], [name])) for name in names))
        if not length(theirs - ours) <= place.gradient_share * size:
            unlike.append(rank)
            factors.append(fit(theirs, [ours]))
    if not unlike:
        return Cause()
    what, ranks = "own gradients", tuple(unlike)
    drawn = [r for r in unlike if _drawn_otherwise(place.a[r], place.b[r])]
    if drawn:
        clause = f"the random numbers of {in_ranks(drawn)} are others: another seed"
        return Cause(clause, True, what, ranks)
    if first := factors[0]:
        (factor,), rest = first
        if rest < CLOSE and abs(factor - 1) > max(CLOSE, 10 * rest):
            clause = (
                f"{factor:.3g} times as large before any reduction: {_scale(factor)}"
            )
            return Cause(clause, True, what, ranks)
        gap = rest + abs(factor - 1)
        if gap <= LOW_PRECISION[1]:
            small = gap < LOW_PRECISION[0]
            why = "rounding?" if small else LOWER
            return Cause(why, False, what, ranks, coarse=not small)
    clause = (
        "these ranks' forward or backward pass is another one (labels, loss, model)"
    )
    return Cause(clause, False, what, ranks)


def _drawn_otherwise(a: Row, b: Row) -> bool:
    return bool((a["draws"] or b["draws"]) and a["random"] != b["random"])


def _of_factor(factor: float, place: Place, found: Measured) -> str:
    """What makes all of B's gradients so many times those of A."""
    size = f"{factor:.3g} times as large"
    for side, rows, world_size, times in (
        ("B", place.b, place.world_sizes[1], factor),
        ("A", place.a, place.world_sizes[0], 1 / factor),
    ):
        # its own gradients, where there are any, tell which of the two it is
        if world_size > 1 and (
            clause := _off(times, world_size, _mean(rows, world_size))
        ):
            return f"{size}: {clause} in {side}"
    passes = [
        len(rows[rank]["inputs"])
        for rows, rank in ((place.a, found.pairs[0][0]), (place.b, found.pairs[0][1]))
    ]
    if min(passes) > 0 and abs(factor * passes[0] / passes[1] - 1) < 10 * CLOSE:
        return f"{size}: accumulated passes are added up, without dividing their losses"
    return f"{size}: {_scale(factor)}"


def _off(times: float, world_size: int, mean: float | None) -> str:
    if mean is not None and abs(mean - times) > 0.01 * times:
        return ""
    if abs(times / world_size - 1) < 10 * CLOSE:
        return "summed instead of averaged"
    if abs(times * world_size - 1) < 10 * CLOSE:
        return f"divided by the number of processes ({world_size}) twice"
    return ""


def _mean(rows: Rows, world_size: int) -> float | None:
    """How many times the mean of the ranks' own gradients the gradient is."""
    row = rows[min(rows)]
    names = common(row["gradients"], *(one["own"] for one in rows.values()))
    if not names or len(rows) < world_size:
        return None
    parts = torch.stack([joined(one["own"], names) for one in rows.values()])
    found = fit(joined(sketches(row, "gradients"), names), [parts.mean(0)])
    return found[0][0] if found and found[1] < 10 * CLOSE else None


def _scale(factor: float) -> str:
    large = max(factor, 1 / factor) if factor > 0 else 0.0
    mantissa = torch.frexp(torch.tensor(large, dtype=torch.float64)).mantissa
    if large >= LEAST_LOSS_SCALE and abs(float(mantissa) - 0.5) < CLOSE:
        return "a loss scale that is not taken off again"
    return "a scaled loss, or clipped to another norm"


def _of_parts(place: Place, found: Measured, names: Sequence[str]) -> Cause | None:
    """From the gradients of A and B as sums of what the ranks of one run computed."""
    x, y = found.pairs[0]
    sides = (
        ("B", place.b, y, _before_clipping(place.a, x)),
        ("A", place.a, x, _before_clipping(place.b, y)),
    )
    kept = {side: _keep_their_own(rows, found.tensor) for side, rows, _, _ in sides}
    for side, rows, rank, other in sides:
        own = [rows[rank]["own"] for rank in sorted(rows)]
        held = common(dict.fromkeys(names), *own)
        parts = [joined(one, held) for one in own]
        shares = _shares(_before_clipping(rows, rank), other, parts, held)
        if shares is None:
            continue
        (factors, rest), (right, rest_right) = shares
        # from other weights come other gradients: then each rank counts the same
        lacks_only = rest_right >= CLOSE
        right = [1.0] * len(own) if lacks_only else right
        mine = rows[rank]["gradients"]
        alike = all(row["gradients"] == mine for row in rows.values())
        pattern = rest < CLOSE and _lacking(factors, right, None if alike else rank)
        if pattern:
            return Cause(f"{side}: {pattern}", sure=True, pattern=not lacks_only)
        if kept[side] and not all(kept.values()):
            few = f"({found.num_beyond_quick} of {found.num} tensors)"
            clause = f"{found.tensor} is not synchronized, ranks keep their own {few}"
            return Cause(f"{side}: {clause}", sure=True)
        if lacks_only:
            continue
        if rest < CLOSE and (uneven := _uneven(side, factors, right, MEANS)):
            return uneven
        # a transfer in 16 bits is off in most tensors, one left out of it in a few
        most = 2 * found.num_beyond_quick > found.num
        coarse = LOW_PRECISION[0] <= rest <= LOW_PRECISION[1]
        if most and coarse and 10 * rest_right < rest:
            return Cause(f"{side}: reduced in lower precision?", sure=True)
    of_passes = (
        _of_passes(side, rows, _before_clipping(rows, rank), other, names)
        for side, rows, rank, other in sides
    )
    return next(filter(None, of_passes), None)


def _before_clipping(rows: Rows, rank: int) -> Sketches:
    """The gradients of ``rank``, without a factor below 1 that all tensors have."""
    factor = min(1.0, _mean(rows, len(rows)) or 1.0)
    found = sketches(rows[rank], "gradients")
    return {name: [x / factor for x in one] for name, one in found.items()}


def _shares(
    mine: Sketches, other: Sketches, parts: Sequence[Tensor], names: Sequence[str]
) -> tuple[tuple[list[float], float], tuple[list[float], float]] | None:
    """Two gradients as sums of ``parts``, if both can be had."""
    if len(parts) < 2 or not names:
        return None
    pair = [fit(joined(one, names), parts) for one in (mine, other)]
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def _keep_their_own(rows: Rows, name: str) -> bool:
    """Whether each rank's gradient of a tensor is its own, clipped or not."""
    found = rows.values()
    if not all(name in row["own"] and name in row["gradients"] for row in found):
        return False
    own = [joined(row["own"], [name]) for row in found]
    after = [joined(sketches(row, "gradients"), [name]) for row in found]
    mean = torch.stack(own).mean(0)
    fits = [(fit(x, [y]), fit(x, [mean])) for x, y in zip(after, own, strict=True)]
    return all(
        f and m and f[1] < CLOSE < 0.1 * m[1] and 0 < f[0][0] < 1 + CLOSE
        for f, m in fits
    )


def _of_passes(
    side: str, rows: Rows, mine: Sketches, other: Sketches, names: Sequence[str]
) -> Cause | None:
    """The same from what each backward pass of a step computed."""
    of_ranks = [rows[rank].get("passes", {}) for rank in sorted(rows)]
    counts = [max(map(len, one.values()), default=0) for one in of_ranks]
    held = [
        name for name in names if [len(one.get(name, ())) for one in of_ranks] == counts
    ]
    parts = [
        joined({name: one[name][number] for name in held}, held)
        for one, count in zip(of_ranks, counts, strict=True)
        for number in range(count)
    ]
    shares = _shares(mine, other, parts, held) if min(counts) else None
    if shares is None or max(shares[0][1], shares[1][1]) >= CLOSE:
        return None
    factors, right = (one for one, _ in shares)
    ends = [*accumulate(counts)]
    within = [right[end - n : end] for end, n in zip(ends, counts, strict=True)]
    each = any(max(r) - min(r) > 10 * CLOSE * max(map(abs, r)) for r in within)
    return _uneven(side, factors, right, MEANS_OF_PASSES if each else MEANS)


def _lacking(
    factors: Sequence[float], right: Sequence[float], alone: int | None
) -> str | None:
    """Which ranks a gradient lacks, from its factors and those of the right one;
    ``alone`` is the rank that has it, where it is not that of all.
    """
    largest = max(map(abs, right))
    most = max(map(abs, factors))
    there = [abs(factor) > 10 * CLOSE * most for factor in factors]
    wanted = [abs(factor) > 10 * CLOSE * largest for factor in right]
    missing = [r for r, (x, y) in enumerate(zip(there, wanted, strict=True)) if y > x]
    if alone is not None and there[alone] and len(missing) == len(factors) - 1:
        return f"rank {alone} keeps its own gradient: not synchronized"
    if missing:
        return f"the gradient of {in_ranks(missing)} is missing from the sum"
    return None


def _uneven(
    side: str, factors: Sequence[float], right: Sequence[float], means: str
) -> Cause | None:
    """Where the parts do not count as they should; ``means`` is said where each counts
    the same and should not.
    """
    largest, most = (max(map(abs, one)) for one in (right, factors))
    if min(map(abs, right)) <= 10 * CLOSE * largest:
        return None
    ratios = [factor / wanted for factor, wanted in zip(factors, right, strict=True)]
    if max(ratios) - min(ratios) < 10 * CLOSE * abs(ratios[0]):
        return None
    weights, clause = _adds_up(factors, right), means
    if max(factors) - min(factors) >= 10 * CLOSE * most:
        clause = "the ranks count otherwise than in the other run"
        if max(right) - min(right) < 10 * CLOSE * largest:
            clause = "the ranks count differently, and alike in the other run"
    elif not weights:
        # it is the other run that takes a mean of means
        return None
    return Cause(f"{side}: {clause}", sure=True, pattern=True, weights=weights)


def _adds_up(factors: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the right factors share out what these do: the parts are means then, each
    of its own targets. Parts of a sum over all targets that would be made means have
    factors that add up to more, by the variance of the numbers of targets.
    """
    ratios = [wanted / factor for wanted, factor in zip(right, factors, strict=True)]
    middle = fmean(ratios)
    spread = fmean((ratio / middle - 1) ** 2 for ratio in ratios)
    return abs(sum(right) / sum(factors) - 1) < spread / 4
