"""Why gradients differ, from the pattern of it: the probable cause.

A wrong gradient is written as a combination of what the ranks computed on their own,
and so is the right one; how the factors of the two compare tells most faults apart. The
right one is that of a replay, or of the other recording. Each cause comes with whether
it is sure: a pattern that rounding does not make.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from torch import Tensor

from minitrain.compare.align import (
    Place,
    Row,
    Rows,
    common,
    fit,
    joined,
    same_samples,
    samples,
    vector,
)
from minitrain.compare.tolerances import CLOSE, LOW_PRECISION, Measured, limits_of
from minitrain.recording.alarm import in_ranks

Fit = tuple[list[float], float]
UNKNOWN = "unknown"
# what is taken off a loss before the step: a power of two, at least
LEAST_LOSS_SCALE = 256
SUMMED = "summed instead of averaged"
TWICE = "divided by the number of processes twice"
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
DRAWN = (
    "the forward pass draws random numbers (dropout?), other ones with another number "
    "of ranks"
)
KEPT = "the gradients of the step before are still in them: no zero_grad() after it"


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


def near(a: float, b: float, close: float = CLOSE) -> bool:
    """Whether two factors are the same."""
    return abs(a - b) <= close * max(1.0, abs(b))


def of_multiple(factor: float, world_size: int, close: float = CLOSE) -> str:
    """Why a gradient is so many times the mean over the ranks; empty where the number
    of ranks does not explain it.
    """
    if world_size > 1 and abs(factor / world_size - 1) < close:
        return SUMMED
    return TWICE if world_size > 1 and abs(factor * world_size - 1) < close else ""


def of_rate(factor: float, world_size: int) -> str:
    """The same of a learning rate, or a step."""
    how = {SUMMED: "multiplied", TWICE: "divided"}.get(of_multiple(factor, world_size))
    return f"learning rate is {how} by the number of processes" if how else ""


def missing_in(factors: Sequence[float], right: Sequence[float]) -> list[int]:
    """The ranks that a gradient lacks, from its factors and those of the right one."""
    least = [10 * CLOSE * max(map(abs, one)) for one in (factors, right)]
    pairs = enumerate(zip(factors, right, strict=True))
    return [r for r, (x, y) in pairs if abs(x) <= least[0] and abs(y) > least[1]]


def of_weights(
    factors: Sequence[float], right: Sequence[float], means: str = MEANS
) -> tuple[str, bool]:
    """Why the parts do not count as they should, and whether they add up to the same;
    an empty text where they do. ``means`` is the cause where each counts the same and
    should not.
    """
    largest, most = (max(map(abs, one)) for one in (right, factors))
    if min(map(abs, right)) <= 10 * CLOSE * largest:
        return "", False
    ratios = [factor / wanted for factor, wanted in zip(factors, right, strict=True)]
    if max(ratios) - min(ratios) < 10 * CLOSE * abs(ratios[0]):
        return "", False
    adds_up = _adds_up(factors, right)
    if max(factors) - min(factors) < 10 * CLOSE * most:
        # else it is the other run that takes a mean of means
        return means if adds_up else "", adds_up
    if max(right) - min(right) < 10 * CLOSE * largest:
        return "the ranks count differently, and alike in the other run", adds_up
    return "the ranks count otherwise than in the other run", adds_up


def _adds_up(factors: Sequence[float], right: Sequence[float]) -> bool:
    # Whether the right factors share out what these do: the parts are means then, each
    # of its own targets. Parts of a sum over all targets that would be made means have
    # factors that add up to more, by the variance of the numbers of targets.
    ratios = [wanted / factor for wanted, factor in zip(right, factors, strict=True)]
    middle = fmean(ratios)
    spread = fmean((ratio / middle - 1) ** 2 for ratio in ratios)
    return abs(sum(right) / sum(factors) - 1) < spread / 4


def cause_in_buffers(ranks: Sequence[int], world_size: int) -> str:
    """Why buffers differ where gradients and parameters do not."""
    if ranks and 0 not in ranks and world_size > 1:
        return "rank 0's buffers are not broadcast before the forward pass"
    return UNKNOWN


def cause_in_gradients(place: Place, found: Measured, here: bool) -> Cause:
    """Why gradients are beyond the limits at ``place``; ``here`` says that the weights
    were alike before it.
    """
    a, b = place.a[found.pairs[0][0]], place.b[found.pairs[0][1]]
    names = common(a["gradients"], b["gradients"])
    if without := _without(place, found.tensor):
        return without
    ours, theirs = (vector(r, "gradients", names) for r in (a, b))
    for side, gradient in (("A", ours), ("B", theirs)):
        if not torch.isfinite(gradient).all():
            return Cause(f"not finite in {side}", sure=True)
    kept = [any(r.get("carried") for r in rows.values()) for rows in (place.a, place.b)]
    if kept[0] != kept[1]:
        return Cause(f"{'B' if kept[1] else 'A'}: {KEPT}", sure=True)
    if place.draws_otherwise:
        return Cause(DRAWN)
    own = cause_in_own(place) if place.same_size and here else None
    if own and own.what:
        weighted = _of_parts(place, found, names)
        return weighted if weighted and weighted.weights else own
    scaled = fit(theirs, [ours])
    if scaled and is_multiple(scaled, LOW_PRECISION[1]):
        return Cause(_of_factor(scaled[0][0], place, found), sure=True, pattern=True)
    if cause := _of_parts(place, found, names):
        return cause
    if not here:
        return Cause("the weights part at a step between (every=1 finds it)")
    return _of_size(place, found, own is not None)


def is_multiple(found: Fit, close: float = CLOSE) -> bool:
    """Whether one tensor is so many times the other, and not once, by more than what is
    left of the fit.
    """
    (factor, *_), rest = found
    return rest < close and abs(factor - 1) > max(CLOSE, 10 * rest)


def _without(place: Place, name: str) -> Cause | None:
    # where ranks of one run have no gradient of a tensor, and others have one
    lacks = [
        [rank for rank, row in rows.items() if name not in row["gradients"]]
        for rows in (place.a, place.b)
    ]
    on_all = [len(lacks[0]) == len(place.a), len(lacks[1]) == len(place.b)]
    if (place.same_size and lacks[0] == lacks[1]) or all(on_all) or not any(lacks):
        return None
    side = 1 if lacks[1] else 0
    where = "" if on_all[side] else f" on {in_ranks(lacks[side])}"
    return Cause(f"{name} has no gradient in {'AB'[side]}{where}", sure=True)


def _of_size(place: Place, found: Measured, own_alike: bool) -> Cause:
    # what no sum of gradients explains: from how far it is apart, and where
    few = found.num_beyond_quick
    if 2 * few <= found.num:
        pairs = zip((place.a, place.b), found.pairs[0], strict=True)
        a, b = (vector(rows[r], "gradients", [found.tensor]) for rows, r in pairs)
        times = fit(b, [a])
        more = ""
        if times and times[1] < CLOSE:
            more = f", {found.tensor} {times[0][0]:.3g} times as large"
        return Cause(f"{few} of {found.num} tensors alone{more}")
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
        ours, theirs = (vector(row, "own", names) for row in (a, b))
        sizes = (float(vector(a, "own", [name]).norm()) for name in names)
        size = max(size, *sizes)
        if not float((theirs - ours).norm()) <= limits_of(place).gradients * size:
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
        if is_multiple(first):
            much = f"{factor:.3g} times as large before any reduction"
            return Cause(f"{much}: {_scale(factor)}", True, what, ranks)
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
    # what makes all of B's gradients so many times those of A
    size = f"{factor:.3g} times as large"
    sides = (("B", place.b, factor), ("A", place.a, 1 / factor))
    for (side, rows, times), ranks in zip(sides, place.world_sizes[::-1], strict=True):
        # its own gradients, where there are any, tell which of the two it is
        mean = _mean(rows, ranks)
        if mean is not None and abs(mean - times) > 0.01 * times:
            continue
        if clause := of_multiple(times, ranks, 10 * CLOSE):
            return f"{size}: {clause} in {side}"
    pairs = zip((place.a, place.b), found.pairs[0], strict=True)
    passes = [len(rows[rank]["inputs"]) for rows, rank in pairs]
    if min(passes) > 0 and abs(factor * passes[0] / passes[1] - 1) < 10 * CLOSE:
        return f"{size}: accumulated passes are added up, without dividing their losses"
    return f"{size}: {_scale(factor)}"


def _mean(rows: Rows, world_size: int) -> float | None:
    # how many times the mean of the ranks' own gradients the gradient is
    row = rows[min(rows)]
    names = common(row["gradients"], *(one["own"] for one in rows.values()))
    if not names or len(rows) < world_size:
        return None
    parts = torch.stack([vector(one, "own", names) for one in rows.values()])
    found = fit(vector(row, "gradients", names), [parts.mean(0)])
    return found[0][0] if found and found[1] < 10 * CLOSE else None


def _scale(factor: float) -> str:
    large = max(factor, 1 / factor) if factor > 0 else 0.0
    mantissa = torch.frexp(torch.tensor(large, dtype=torch.float64)).mantissa
    if large >= LEAST_LOSS_SCALE and abs(float(mantissa) - 0.5) < CLOSE:
        return "a loss scale that is not taken off again"
    return "a scaled loss, or clipped to another norm"


def _of_parts(place: Place, found: Measured, names: Iterable[str]) -> Cause | None:
    # from the gradients of A and B as sums of what the ranks of one run computed
    x, y = found.pairs[0]
    sides = (("B", place.b, y, place.a, x), ("A", place.a, x, place.b, y))
    kept = {side: _keep_their_own(rows, found.tensor) for side, rows, *_ in sides}
    for side, rows, rank, others, other in sides:
        own = [rows[r]["own"] for r in sorted(rows)]
        held = common(dict.fromkeys(names), *own)
        pair = _unclipped(rows, rank, held), _unclipped(others, other, held)
        fits = _fits(pair, [joined(one, held) for one in own])
        if fits is None:
            continue
        (factors, rest), (right, rest_right) = fits
        # from other weights come other gradients: then each rank counts the same
        lacks_only = rest_right >= CLOSE
        right = [1.0] * len(own) if lacks_only else right
        if rest < CLOSE and (missing := missing_in(factors, right)):
            clause = f"the gradient of {in_ranks(missing)} is missing from the sum"
            mine = rows[rank]["gradients"]
            alike = all(row["gradients"] == mine for row in rows.values())
            if not alike and rank not in missing and len(missing) == len(own) - 1:
                clause = f"rank {rank} keeps its own gradient: not synchronized"
            return Cause(f"{side}: {clause}", sure=True, pattern=not lacks_only)
        if kept[side] and not all(kept.values()):
            few = f"({found.num_beyond_quick} of {found.num} tensors)"
            clause = f"{found.tensor} is not synchronized, ranks keep their own {few}"
            return Cause(f"{side}: {clause}", sure=True)
        if lacks_only:
            continue
        clause, adds_up = of_weights(factors, right) if rest < CLOSE else ("", False)
        if clause:
            return Cause(f"{side}: {clause}", sure=True, pattern=True, weights=adds_up)
        # a transfer in 16 bits is off in most tensors, one left out of it in a few
        most = 2 * found.num_beyond_quick > found.num
        coarse = LOW_PRECISION[0] <= rest <= LOW_PRECISION[1]
        if most and coarse and 10 * rest_right < rest:
            return Cause(f"{side}: reduced in lower precision?", sure=True)
    return next(filter(None, (_of_passes(*side, names) for side in sides)), None)


def _unclipped(rows: Rows, rank: int, names: Sequence[str]) -> Tensor:
    # the gradient of a rank, without a factor below 1 that all tensors have
    factor = min(1.0, _mean(rows, len(rows)) or 1.0)
    return vector(rows[rank], "gradients", names) / factor


def _fits(pair: Iterable[Tensor], parts: Sequence[Tensor]) -> tuple[Fit, Fit] | None:
    # two gradients as sums of ``parts``, if both can be had
    if len(parts) < 2 or not len(parts[0]):
        return None
    mine, other = (fit(one, parts) for one in pair)
    return None if mine is None or other is None else (mine, other)


def _keep_their_own(rows: Rows, name: str) -> bool:
    # whether each rank's gradient of a tensor is its own, clipped or not
    found = rows.values()
    if not all(name in row["own"] and name in row["gradients"] for row in found):
        return False
    kinds = ("own", "gradients")
    own, after = ([vector(row, k, [name]) for row in found] for k in kinds)
    mean = torch.stack(own).mean(0)
    fits = [(fit(x, [y]), fit(x, [mean])) for x, y in zip(after, own, strict=True)]
    return all(
        f and m and f[1] < CLOSE < 0.1 * m[1] and 0 < f[0][0] < 1 + CLOSE
        for f, m in fits
    )


def _of_passes(
    side: str, rows: Rows, rank: int, others: Rows, other: int, names: Iterable[str]
) -> Cause | None:
    # the same from what each backward pass of a step computed
    of_ranks = [rows[rank].get("passes", {}) for rank in sorted(rows)]
    counts = [max(map(len, one.values()), default=0) for one in of_ranks]
    held = [n for n in names if [len(one.get(n, ())) for one in of_ranks] == counts]
    parts = [
        joined({name: one[name][number] for name in held}, held)
        for one, count in zip(of_ranks, counts, strict=True)
        for number in range(count)
    ]
    pair = _unclipped(rows, rank, held), _unclipped(others, other, held)
    fits = _fits(pair, parts) if min(counts) else None
    if fits is None or max(fits[0][1], fits[1][1]) >= CLOSE:
        return None
    factors, right = (one for one, _ in fits)
    ends = [*accumulate(counts)]
    within = [right[end - n : end] for end, n in zip(ends, counts, strict=True)]
    each = any(max(r) - min(r) > 10 * CLOSE * max(map(abs, r)) for r in within)
    clause, adds_up = of_weights(factors, right, MEANS_OF_PASSES if each else MEANS)
    if not clause:
        return None
    return Cause(f"{side}: {clause}", sure=True, pattern=True, weights=adds_up)
