"""Drift of the parameters of two runs, step by step, that is no rounding."""

import math
from collections.abc import Sequence

from torch import Tensor

from minitrain.compare.align import Pair, StepPair
from minitrain.compare.difference import Cause, Why, why
from minitrain.compare.distances import Distance
from minitrain.compare.gradient_causes import is_multiple, rate_by_size
from minitrain.compare.limits import CLOSE, CLOSE_ADAPTIVE, FOLLOWS, LEAST_DECAY
from minitrain.recording.alarm import Row
from minitrain.recording.sketches import common, fit, norm, vector

# units in the last place: a step as long is not rounded away
UNITS = 64


def moves(
    place: StepPair, before: StepPair, found: Distance
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return how far the last steps took A and B, and where A was before them."""
    x, y = found.pairs[0]
    rows = [place.a[x], before.a.get(x), place.b[y], before.b.get(y)]
    there = [row for row in rows if row is not None]
    if len(there) < len(rows):
        return None
    names = common(*(row["parameters"] for row in there))
    now_a, was_a, now_b, was_b = (vector(row, "parameters", names) for row in there)
    return now_a - was_a, now_b - was_b, was_a


def cause_of_drift(
    place: StepPair, before: StepPair | None, found: Distance
) -> Why | None:
    """Return what takes A and B apart step by step, where it is a pattern and no
    rounding: steps of another length, or another weight decay. ``before`` is the
    recorded step before.
    """
    if before is None:
        names = common(*(row["parameters"] for row in place.first))
        a, b = (vector(row, "parameters", names) for row in place.first)
        return _of_decay(b - a, [], a, 1)
    moved = moves(place, before, found)
    if moved is None:
        return None
    ours, theirs, start = moved
    close = CLOSE if place.trajectory.linear else CLOSE_ADAPTIVE
    whole = fit(theirs, [ours])
    if whole and is_multiple(whole, close) and abs(whole[0][0] - 1) > close:
        factor = whole[0][0]
        by_size = rate_by_size(factor, place.world_sizes)
        return by_size or why(Cause.STEPS, side="B", factor=factor)
    return _of_decay(theirs - ours, [ours], start, place.step - before.step)


def _of_decay(
    gap: Tensor, moves: Sequence[Tensor], weights: Tensor, steps: int
) -> Why | None:
    # where the gap goes along the weights themselves
    found = fit(gap, [weights, *moves])
    if found is None:
        return None
    (decay, *_), rest = found
    if rest > FOLLOWS or abs(decay) < LEAST_DECAY * steps:
        return None
    # and not along the moves alone
    without = fit(gap, moves)
    if without is not None and without[1] < 2 * rest:
        return None
    return why(Cause.DECAY)


def stands(row: Row, name: str) -> bool:
    """Return whether a step left a tensor where it was."""
    after = row["parameters"].get(name)
    return after is not None and bool(row["before"].get(name) == after["hash"])


def still_in_one(place: StepPair) -> tuple[str, str, list[Pair]] | None:
    """The first tensor that moves in A or B alone, though both have a gradient for it
    that is more than noise: the tensor, the side on which it stays, and the ranks.

    A small tensor hardly counts beside the model, and under Adam may be far off by
    rounding alone. That it stays is no rounding, if the step is long enough.
    """
    found: dict[tuple[str, str], list[Pair]] = {}
    for x, y in place.pairs:
        a, b = place.a[x], place.b[y]
        kinds = [row[kind] for row in (a, b) for kind in ("parameters", "gradients")]
        for name in common(*kinds):
            in_a, in_b = stands(a, name), stands(b, name)
            if in_a != in_b and all(_must_move(place, r, name) for r in (a, b)):
                found.setdefault((name, "A" if in_a else "B"), []).append((x, y))
    return next(((*key, pairs) for key, pairs in found.items()), None)


def _must_move(place: StepPair, row: Row, name: str) -> bool:
    gradient = norm(row["gradients"][name])
    largest = max(norm(entry) for entry in row["gradients"].values())
    if not gradient > place.limits.gradients * largest:
        return False
    # a step of Adam is as long as the rate, one of SGD as rate times gradient
    size = math.sqrt(place.trajectory.numel.get(name, 0))
    reach = gradient if place.trajectory.linear else max(gradient, size)
    unit = place.trajectory.eps.get(name, 1.0) * norm(row["parameters"][name])
    return min(row["lr"], default=0.0) * reach > UNITS * unit
