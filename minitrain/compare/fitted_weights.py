"""Causes of a difference in gradients that show in the weights of their terms.

Both the wrong and the right gradient (from a replay or the other recording) are fitted
as a weighted sum of terms: the ranks' own gradients, from before the all-reduce, or the
gradients of their micro-batches. Most faults show in the weights (factors) of the fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from statistics import fmean
from typing import Any, NamedTuple

from torch import Tensor

from minitrain.compare.align import RowsByRank, StepPair
from minitrain.compare.difference import Cause, Why, why
from minitrain.compare.distances import Distance
from minitrain.compare.limits import CLOSE, LOW_PRECISION
from minitrain.recording.sketches import (
    Fit,
    common,
    comparable,
    fit,
    joined,
    sketches,
    vector,
)

# largest relative error of fitted factors, which are less exact than the residual
CLOSE_FACTORS = 10 * CLOSE
# Two sums of factors count as equal if they differ by at most this share of what
# unequal numbers of targets would make of them (see _adds_up).
SAME_SUM = 0.25


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
    ends = [*accumulate(counts)]
    within = [
        one[end - count : end]
        for one in (factors, of_other)
        for end, count in zip(ends, counts, strict=True)
    ]
    means = Cause.MEANS if all(map(_are_alike, within)) else Cause.MEANS_OF_PASSES
    cause = cause_in_factors(factors, of_other, (side.name, other.name), means)
    return replace(cause, same_samples=True) if cause else None
