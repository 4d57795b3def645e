"""Causes of a difference in gradients.

:func:`cause_in_gradients` tries them in order; ``place`` is a step in A and B
(StepPair). Most faults show in weights: the wrong and the right gradient (from a replay
or the other recording) are fitted as a weighted sum of terms, the ranks' own gradients,
from before the all-reduce, or the gradients of their micro-batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrain.compare.align import RowsByRank, StepPair, same_samples, samples
from minitrain.compare.difference import UNKNOWN, Cause, Why, why
from minitrain.compare.distances import Distance
from minitrain.compare.limits import CLOSE, LOW_PRECISION
from minitrain.recording.alarm import Row, in_ranks
from minitrain.recording.sketches import (
    Fit,
    common,
    comparable,
    fit,
    joined,
    sketches,
    vector,
)

# largest relative distance of two estimates of one factor
SAME_FACTOR = 0.01
# largest relative error of fitted factors, which are less exact than the residual
CLOSE_FACTORS = 10 * CLOSE
# Two sums of factors count as equal if they differ by at most this share of what
# unequal numbers of targets would make of them (see _adds_up).
SAME_SUM = 0.25


def cause_in_gradients(place: StepPair, found: Distance, agreed_before: bool) -> Why:
    """Return why gradients are beyond the limits at ``place``; ``found``: their
    distance; ``agreed_before``: the parameters agreed before this step.

    The causes are tried in this order, as each may produce the patterns of later ones:
    no gradient, not finite, not zeroed, random numbers, the ranks' own gradients, one
    factor for all, weights of ranks or micro-batches, and last the distance alone.
    """
    a, b = place.a[found.pairs[0][0]], place.b[found.pairs[0][1]]
    names = common(a["gradients"], b["gradients"])
    if without := _without(place, found.tensor):
        return without
    ours, theirs = (vector(r, "gradients", names) for r in (a, b))
    for side, gradient in (("A", ours), ("B", theirs)):
        if not torch.isfinite(gradient).all():
            return why(Cause.NOT_FINITE, side=side)
    kept = [any(r.get("carried") for r in rows.values()) for rows in (place.a, place.b)]
    if kept[0] != kept[1]:
        return why(Cause.KEPT, side="B" if kept[1] else "A")
    if place.draws_otherwise:
        return why(Cause.DRAWN)
    own = compare_own(place) if place.same_size and agreed_before else None
    if own and own.own:
        weighted = cause_in_weights(place, found, names)
        # wrong weights, if they are applied to the loss, change own gradients as well
        means = (Cause.MEANS, Cause.MEANS_OF_PASSES)
        return weighted if weighted and weighted.cause in means else own
    whole = fit(theirs, [ours])
    if whole and is_multiple(whole, LOW_PRECISION[1]):
        return replace(_by_factor(whole[0][0], place), same_samples=True)
    if cause := cause_in_weights(place, found, names):
        return cause
    if not agreed_before:
        return why(Cause.BETWEEN)
    # unless ``own`` is None, own gradients were compared and agree: see above
    return _by_distance(place, found, own is not None)


def is_multiple(fitted: Fit, close: float = CLOSE) -> bool:
    """Return whether a fit by one vector is close, and its factor clearly not 1."""
    (factor, *_), rest = fitted
    return rest < close and abs(factor - 1) > max(CLOSE, 10 * rest)


def _without(place: StepPair, name: str) -> Why | None:
    # some ranks of one run have no gradient of a tensor, and others have one
    lacks = [
        [rank for rank, row in rows.items() if name not in row["gradients"]]
        for rows in (place.a, place.b)
    ]
    on_all = [len(lacks[0]) == len(place.a), len(lacks[1]) == len(place.b)]
    if (place.same_size and lacks[0] == lacks[1]) or all(on_all) or not any(lacks):
        return None
    number = 1 if lacks[1] else 0
    ranks = "" if on_all[number] else f" on {in_ranks(lacks[number])}"
    return why(Cause.NO_GRADIENT, tensor=name, where="AB"[number] + ranks)


def _by_distance(place: StepPair, found: Distance, own_alike: bool) -> Why:
    # no sum of gradients explains it: judge by the distance, and the tensors beyond
    few = found.num_beyond_quick
    if 2 * few <= found.num:
        return why(Cause.FEW, few=few, num=found.num)
    if place.trajectory.trains_buffers and not place.same_size:
        return why(Cause.BATCH_NORM)
    is_coarse = LOW_PRECISION[0] <= found.whole <= LOW_PRECISION[1]
    if own_alike:
        reduced = why(Cause.REDUCED, side="A or B", dtype="16 bits?")
        return reduced if is_coarse else why(Cause.PUT_TOGETHER)
    if is_coarse:
        return why(Cause.LOWER)
    known = all(row["own"] for row in (*place.a.values(), *place.b.values()))
    is_read = samples(place.a) and same_samples(place.a, place.b)
    if known and is_read and not place.same_size:
        return why(Cause.NOT_A_MEAN)
    return UNKNOWN


def compare_own(place: StepPair) -> Why | None:
    """Return why the ranks' own gradients, from before the reduction, differ; UNKNOWN
    if they do not, None if they are not recorded, or of other samples.
    """
    unlike, factors, size = [], [], 0.0
    for rank, _ in place.pairs:
        a, b = place.a[rank], place.b[rank]
        names = common(a["own"], b["own"], a["gradients"], b["gradients"])
        if not names or len(names) < len(common(a["gradients"], b["gradients"])):
            return None
        if not same_samples({0: a}, {0: b}):
            # the samples are dealt to other ranks
            return None
        ours, theirs = (vector(row, "own", names) for row in (a, b))
        sizes = (float(vector(a, "own", [name]).norm()) for name in names)
        size = max(size, *sizes)
        if not float((theirs - ours).norm()) <= place.limits.gradients * size:
            unlike.append(rank)
            factors.append(fit(theirs, [ours]))
    if not unlike:
        return UNKNOWN
    cause = why(Cause.PASS)
    drawn = [r for r in unlike if drawn_otherwise(place.a[r], place.b[r])]
    if drawn:
        cause = why(Cause.RANDOM, ranks=drawn)
    elif first := factors[0]:
        (factor,), rest = first
        gap = rest + abs(factor - 1)
        if is_multiple(first):
            cause = why(Cause.OWN_SCALED, factor=factor)
        elif gap <= LOW_PRECISION[1]:
            is_small = gap < LOW_PRECISION[0]
            cause = why(Cause.ROUNDING if is_small else Cause.LOWER)
    return replace(cause, own=tuple(unlike))


def drawn_otherwise(a: Row, b: Row) -> bool:
    """Return whether passes draw random numbers (dropout) from unlike states."""
    return bool((a["draws"] or b["draws"]) and a["random"] != b["random"])


def _by_factor(factor: float, place: StepPair) -> Why:
    # gradients of B are ``factor`` times as large as in A
    sides = (("B", place.b, factor), ("A", place.a, 1 / factor))
    for (side, rows, times), ranks in zip(sides, place.world_sizes[::-1], strict=True):
        # the ranks' own gradients, if recorded, decide which run is wrong
        mean = factor_of_mean(rows, ranks)
        if mean is not None and abs(mean - times) > SAME_FACTOR * times:
            continue
        if cause := multiple(times, ranks, CLOSE_FACTORS):
            return scaled(factor, cause, side=side)
    return scaled(factor)


def multiple(factor: float, world_size: int, close: float = CLOSE) -> Cause | None:
    """Return SUMMED if ``factor`` is ``world_size``, AVERAGED_TWICE if it is its
    inverse, up to a relative error of ``close``; None otherwise, and for one rank.
    """
    if world_size > 1 and abs(factor / world_size - 1) < close:
        return Cause.SUMMED
    if world_size > 1 and abs(factor * world_size - 1) < close:
        return Cause.AVERAGED_TWICE
    return None


def scaled(factor: float, cause: Cause | None = None, **facts: Any) -> Why:
    """Return why gradients are ``factor`` times as large: ``cause``, with ``facts``."""
    facts = {"factor": factor, "of": "as large"} | facts
    return why(cause or Cause.SCALED, **facts)


def rate_by_size(
    factor: float, world_sizes: tuple[int, int], sides: Sequence[str] = "AB"
) -> Why | None:
    """Return the cause if a run multiplies or divides its learning rate by its number
    of processes, else None. ``factor``: the rate of the second run divided by the rate
    of the first; ``sides``: the names of the runs.
    """
    causes = {
        Cause.SUMMED: Cause.RATE_MULTIPLIED,
        Cause.AVERAGED_TWICE: Cause.RATE_DIVIDED,
    }
    for number, times in ((1, factor), (0, 1 / factor if factor else 0.0)):
        if by := multiple(times, world_sizes[number]):
            return why(causes[by], side=sides[number])
    return None


def cause_in_factors(
    factors: Sequence[float],
    right: Sequence[float],
    sides: tuple[str, str],
    means: Cause = Cause.MEANS,
) -> Why | None:
    """Return why the terms of a gradient (from ranks or micro-batches) have wrong
    weights; None if they are right, or no pattern fits. ``factors``: weights in the
    gradient that may be wrong; ``right``: in the right gradient, or for recordings in
    the other run. ``sides``: names of the two runs; ``means``: the cause to return if
    all terms have the same weight and should not. (diagnosis.py uses it for runs.)
    """
    side, other = sides
    if min(map(abs, right)) / max(map(abs, right)) <= CLOSE_FACTORS:
        return None
    if _are_alike([x / wanted for x, wanted in zip(factors, right, strict=True)]):
        return None
    if _are_alike(factors):
        return why(means, side=side) if _adds_up(factors, right) else None
    if _are_alike(right) and _adds_up(right, factors):
        return why(means, side=other)
    return why(Cause.WEIGHTS, side=side)


def missing_in(factors: Sequence[float], right: Sequence[float]) -> list[int]:
    """Return the indices of terms with a factor of about zero, but not in ``right``."""
    least = [CLOSE_FACTORS * max(map(abs, one)) for one in (factors, right)]
    pairs = enumerate(zip(factors, right, strict=True))
    return [r for r, (x, y) in pairs if abs(x) <= least[0] and abs(y) > least[1]]


def _are_alike(factors: Sequence[float]) -> bool:
    return max(factors) - min(factors) < CLOSE_FACTORS * max(map(abs, factors))


def _adds_up(factors: Sequence[float], right: Sequence[float]) -> bool:
    # If each term is the mean over its own targets, both kinds of factors add up to
    # the same. Terms of a sum over all targets have factors that add up to more, by
    # the variance of the numbers of targets.
    if min(map(abs, factors)) == 0:
        return False
    ratios = [wanted / factor for wanted, factor in zip(right, factors, strict=True)]
    middle = fmean(ratios)
    spread = fmean((ratio / middle - 1) ** 2 for ratio in ratios)
    return abs(sum(right) / sum(factors) - 1) < SAME_SUM * spread


def factor_of_mean(rows: RowsByRank, world_size: int) -> float | None:
    """Return the gradient as a multiple of the mean of the ranks' own, or None."""
    ranks = [rows[rank] for rank in sorted(rows)]
    together = sketches(ranks, comparable(ranks)) if len(ranks) == world_size else None
    if together is None:
        return None
    factor, rest = together.in_mean()
    return factor if rest < CLOSE_FACTORS else None


class _Side(NamedTuple):
    """One run: its name, its rows by rank, and the rank whose gradient differs."""

    name: str
    rows: RowsByRank
    rank: int

    def gradient(self, names: Sequence[str]) -> Tensor:
        """Return the sketches of gradients as one vector, as before clipping."""
        factor = min(1.0, factor_of_mean(self.rows, len(self.rows)) or 1.0)
        return vector(self.rows[self.rank], "gradients", names) / factor


def _fits(
    side: _Side, other: _Side, parts: Sequence[Tensor], names: Sequence[str]
) -> tuple[Fit, Fit] | None:
    # the gradients of both as combinations of ``parts``, if both can be fitted
    if len(parts) < 2 or not len(parts[0]):
        return None
    mine, theirs = (fit(one.gradient(names), parts) for one in (side, other))
    return None if mine is None or theirs is None else (mine, theirs)


def cause_in_weights(
    place: StepPair, found: Distance, names: Iterable[str]
) -> Why | None:
    """Return the cause that the weights of ranks or micro-batches show at ``place``, or
    None. A and B are fitted by the ranks' own gradients of one run, or else by its
    micro-batches. ``found``: their distance; ``names``: tensors with a gradient.
    """
    x, y = found.pairs[0]
    a, b = _Side("A", place.a, x), _Side("B", place.b, y)
    sides = (b, a), (a, b)
    by_ranks = (_by_ranks(*pair, found, names) for pair in sides)
    by_passes = (_by_passes(*pair, names) for pair in sides)
    return next(filter(None, chain(by_ranks, by_passes)), None)


def _by_ranks(
    side: _Side, other: _Side, found: Distance, names: Iterable[str]
) -> Why | None:
    rows = side.rows
    sketches_by_rank = [rows[r]["own"] for r in sorted(rows)]
    held = common(dict.fromkeys(names), *sketches_by_rank)
    fits = _fits(side, other, [joined(one, held) for one in sketches_by_rank], held)
    if fits is None:
        return None
    (factors, rest), (of_other, other_rest) = fits
    # if own gradients do not fit the other run, its weights differ: then each rank
    # should count the same, and only a missing rank shows
    only_missing_shows = other_rest >= CLOSE
    of_other = [1.0] * len(sketches_by_rank) if only_missing_shows else of_other
    if rest < CLOSE and (missing := missing_in(factors, of_other)):
        cause = why(Cause.MISSING, side=side.name, ranks=missing)
        mine = rows[side.rank]["gradients"]
        is_alone = side.rank not in missing and len(missing) == len(rows) - 1
        if is_alone and any(row["gradients"] != mine for row in rows.values()):
            cause = why(Cause.KEEPS_OWN, side=side.name, ranks=[side.rank])
        return replace(cause, same_samples=not only_missing_shows)
    if only_missing_shows:
        return None
    sides = side.name, other.name
    if rest < CLOSE and (weighted := cause_in_factors(factors, of_other, sides)):
        return replace(weighted, same_samples=True)
    # a reduction in 16 bits affects most tensors, a missing one only a few
    most = 2 * found.num_beyond_quick > found.num
    coarse = LOW_PRECISION[0] <= rest <= LOW_PRECISION[1]
    if most and coarse and 10 * other_rest < rest:
        return why(Cause.REDUCED, side=side.name, dtype="16 bits?")
    return None


def _by_passes(side: _Side, other: _Side, names: Iterable[str]) -> Why | None:
    # fit by the gradients of each backward pass of the ranks
    of_ranks = [side.rows[rank].get("passes", {}) for rank in sorted(side.rows)]
    counts = [max(map(len, one.values()), default=0) for one in of_ranks]
    held = [n for n in names if [len(one.get(n, ())) for one in of_ranks] == counts]
    parts = [
        joined({name: one[name][number] for name in held}, held)
        for one, count in zip(of_ranks, counts, strict=True)
        for number in range(count)
    ]
    fits = _fits(side, other, parts, held) if min(counts) else None
    if fits is None or max(fits[0][1], fits[1][1]) >= CLOSE:
        return None
    factors, of_other = (one for one, _ in fits)
    within = [
        of_rank.tolist()
        for one in (factors, of_other)
        for of_rank in torch.tensor(one, dtype=torch.float64).split(counts)
    ]
    means = Cause.MEANS if all(map(_are_alike, within)) else Cause.MEANS_OF_PASSES
    cause = cause_in_factors(factors, of_other, (side.name, other.name), means)
    return replace(cause, same_samples=True) if cause else None
