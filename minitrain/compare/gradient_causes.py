"""Causes of a difference in gradients, tried in order.

``place`` is a step in A and B (StepPair). Causes that show in the weights of ranks or
micro-batches are in fitted_weights.py.
"""

from dataclasses import replace

import torch

from minitrain.compare.align import StepPair, same_samples, samples
from minitrain.compare.difference import UNKNOWN, Cause, Why, why
from minitrain.compare.distances import Distance
from minitrain.compare.fitted_weights import (
    CLOSE_FACTORS,
    cause_in_weights,
    factor_of_mean,
    multiple,
    scaled,
)
from minitrain.compare.limits import CLOSE, LOW_PRECISION
from minitrain.recording.alarm import Row, in_ranks
from minitrain.recording.sketches import Fit, common, fit, vector

# largest relative distance of two estimates of one factor
SAME_FACTOR = 0.01


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
    if LOW_PRECISION[0] <= found.whole <= LOW_PRECISION[1]:
        if own_alike and max(place.world_sizes) > 1:
            return why(Cause.REDUCED, side="A or B", dtype="16 bits?")
        return replace(why(Cause.LOWER), own_alike=own_alike)
    if own_alike:
        return why(Cause.PUT_TOGETHER)
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
