"""Differences at a step apart from gradients, and their causes: data, learning rates,
settings, drift of parameters, buffers, the optimizer's state.
"""

import math
from collections.abc import Sequence
from typing import Any

from minitrain.compare.align import Pair, RowsByRank, StepPair, ratio, samples
from minitrain.compare.difference import UNKNOWN, Cause, Difference, What, Why, why
from minitrain.compare.gradient_causes import rate_by_size
from minitrain.compare.limits import CLOSE, SAME_RATE
from minitrain.recording.alarm import Row
from minitrain.recording.rules_of_steps import settings_of
from minitrain.recording.sketches import apart, common, is_finite, norm

# a step of so many units in the last place is not rounded away
UNITS = 64


def at(place: StepPair, what: What, cause: Why, much: str, **more: Any) -> Difference:
    """Return a Difference at ``place``; ``much``: its size; ``more``: other fields."""
    more |= {"optimizer": place.optimizer, "end": place.end}
    return Difference(place.step, what, cause, much, **more)


def cause_in_data(place: StepPair, before: StepPair | None) -> Why:
    """Return why samples differ; ``before``: the recorded step before, or None."""
    a, b = samples(place.a), samples(place.b)
    inputs = [samples(rows, "unlabelled") for rows in (place.a, place.b)]
    if inputs[0] and inputs[0] == inputs[1]:
        return why(Cause.LABELS)
    for side, rows, ours, theirs in (("B", place.b, b, a), ("A", place.a, a, b)):
        more = [ours[digest] for digest in ours - theirs]
        if more and min(more) > 1:
            each = [samples({rank: row}) for rank, row in rows.items()]
            if len(each) > 1 and all(one == each[0] for one in each):
                return why(Cause.NO_SAMPLER, side=side)
            return why(Cause.REPEATED, side=side, count=sum(more) - len(more))
    if before is not None:
        for side, now, rows in (("B", b, before.b), ("A", a, before.a)):
            if now == samples(rows):
                return why(Cause.BATCH_AGAIN, side=side, step=before.step)
    if a.total() != b.total():
        return why(Cause.BATCH_SIZE)
    return why(Cause.SAMPLES, who="B") if a & b else why(Cause.ORDER)


def rates_unlike(place: StepPair) -> Difference | None:
    """Return the difference in learning rates beyond float32 rounding, or None."""
    unlike = [(x, y) for x, y in place.pairs if not _same_rates(place.a[x], place.b[y])]
    if not unlike:
        return None
    x, y = unlike[0]
    ours, theirs = (sorted({*row["lr"]}) for row in (place.a[x], place.b[y]))
    much = " against ".join(
        ", ".join(f"{rate:.6g}" for rate in rates) or "none" for rates in (ours, theirs)
    )
    factors = [y / x for x, y in zip(ours, theirs, strict=False) if x]
    cause = None
    if len(ours) == len(theirs) == len(factors):
        is_one = max(factors) - min(factors) <= CLOSE * abs(factors[0])
        cause = rate_by_size(factors[0], place.world_sizes) if is_one else None
    cause = cause or why(Cause.SCHEDULE)
    return at(place, What.RATE, cause, much, **place.named(unlike))


def _same_rates(a: Row, b: Row) -> bool:
    # group by group; with other groups, the sets of rates
    ours, theirs = a["lr"], b["lr"]
    if len(ours) != len(theirs):
        ours, theirs = sorted({*ours}), sorted({*theirs})
    return _same_setting(tuple(ours), tuple(theirs))


def settings_unlike(place: StepPair) -> Difference | None:
    """Return the difference in optimizer settings (weight decay, betas), or None."""
    found: dict[tuple[str, str], list[Pair]] = {}
    for x, y in place.pairs:
        a, b = settings_of(place.a[x]), settings_of(place.b[y])
        for name in common(a, b):
            for key in common(a[name], b[name]):
                if not _same_setting(a[name][key], b[name][key]):
                    found.setdefault((name, key), []).append((x, y))
    if not found:
        return None
    (name, key), pairs = next(iter(found.items()))
    x, y = pairs[0]
    ours, theirs = (settings_of(r)[name][key] for r in (place.a[x], place.b[y]))
    much, named = f"{key} = {ours} against {theirs}", place.named(pairs)
    return at(place, What.SETTINGS, why(Cause.SETTING), much, tensor=name, **named)


def _same_setting(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_setting, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME_RATE)
    return bool(a == b)


def still_in_one(place: StepPair) -> tuple[str, str, list[Pair]] | None:
    """Return the first tensor that only one run updates, the side that does not update
    it, and the pairs of ranks; None if there is none. Tensors count if both runs have a
    gradient for them that is more than noise.

    Limits are wide for a small tensor, since under Adam rounding alone may carry it
    far; but rounding does not stop it, if the step is long enough.
    """
    found: dict[tuple[str, str], list[Pair]] = {}
    for x, y in place.pairs:
        a, b = place.a[x], place.b[y]
        kinds = [row[kind] for row in (a, b) for kind in ("parameters", "gradients")]
        for name in common(*kinds):
            in_a, in_b = _stands(a, name), _stands(b, name)
            if in_a != in_b and all(_must_move(place, r, name) for r in (a, b)):
                found.setdefault((name, "A" if in_a else "B"), []).append((x, y))
    return next(((*key, pairs) for key, pairs in found.items()), None)


def _stands(row: Row, name: str) -> bool:
    return bool(row["before"].get(name) == row["parameters"][name]["hash"])


def _must_move(place: StepPair, row: Row, name: str) -> bool:
    gradient = norm(row["gradients"][name])
    largest = max(norm(entry) for entry in row["gradients"].values())
    if not gradient > place.limits.gradients * largest:
        return False
    # least length of a step: SGD's is rate times gradient, Adam's the rate an element
    reach = gradient if place.trajectory.linear else max(gradient, 1.0)
    unit = place.trajectory.eps.get(name, 1.0) * norm(row["parameters"][name])
    return min(row["lr"], default=0.0) * reach > UNITS * unit


def state_unlike(place: StepPair) -> Difference | None:
    """Return the first difference in bits of the optimizer's state, or None."""
    of_a, of_b = (_state_held(rows) for rows in (place.a, place.b))
    for name in {**of_a, **of_b}:
        a, b = of_a.get(name, {}), of_b.get(name, {})
        # if no rank holds it in both runs, compare the first ranks that hold it
        pairs = [(rank, rank) for rank in a if rank in b]
        pairs = pairs or [(min(a, default=0), min(b, default=0))]
        unlike = [(y, y) for x, y in pairs if a.get(x) != b.get(y)]
        if unlike:
            much = "other bits" if a and b else f"none in {'B' if a else 'A'}"
            named = place.named(unlike) if a and b else {}
            cause = why(Cause.OPTIMIZER)
            return at(place, What.STATE, cause, much, tensor=name, **named)
    return None


def _state_held(rows: RowsByRank) -> dict[str, dict[int, str]]:
    # hashes of the optimizer's state (momentum, ...) by parameter and rank
    found: dict[str, dict[int, str]] = {}
    for rank, row in rows.items():
        for name, digest in row["moments"].items():
            found.setdefault(name, {})[rank] = digest
    return found


def also_unlike(place: StepPair) -> Difference | None:
    """Return the first difference in modules recorded with ``also=``, or None."""
    for x, y in place.pairs:
        a, b = (row.get("also", {}) for row in (place.a[x], place.b[y]))
        for name in common(a, b):
            if a[name] != b[name]:
                return at(place, What.ALSO, UNKNOWN, "other bits", tensor=name)
    return None


def cause_in_buffers(ranks: Sequence[int], world_size: int) -> Why:
    """Return why buffers of two runs differ on ``ranks``, though parameters agree."""
    if ranks and 0 not in ranks and world_size > 1:
        return why(Cause.BUFFERS_NOT_BROADCAST)
    return UNKNOWN


def buffers_unlike(place: StepPair, exact: bool) -> Difference | None:
    """Return the difference in the buffer that is farthest apart, or None. If ``exact``
    (all compared before has equal bits), any bit counts; else only more than rounding
    to 16 bits, or what is not finite, and neither is sure.
    """
    far: dict[str, dict[int, float]] = {}
    for rank, _ in place.pairs:
        a, b = place.a[rank]["buffers"], place.b[rank]["buffers"]
        for name in {**a, **b}:
            share = share_apart(a.get(name), b.get(name))
            share = math.inf if math.isnan(share) else share
            if share > (0.0 if exact else place.limits.coarse):
                far.setdefault(name, {})[rank] = share
    if not far:
        return None
    name = max(far, key=lambda one: max(far[one].values()))
    share, ranks = max(far[name].values()), [*far[name]]
    much = f"about {share:.2g} of its size apart"
    much = "other numbers, or not finite" if math.isinf(share) else much
    cause = why(Cause.UNREAD)
    if exact:
        cause = cause_in_buffers(ranks, place.world_sizes[0])
    more = {"tensor": name, **place.named([(rank, rank) for rank in ranks])}
    return at(place, What.BUFFERS, cause, much, sure=exact, **more)


def share_apart(a: Row | None, b: Row | None) -> float:
    """Return the distance of two fingerprints of a tensor, as a share of the larger
    norm: 0 only for equal bits; else infinity if one is None or of integers, or only
    one is finite; NaN if none is finite.
    """
    if a and b and a["hash"] == b["hash"]:
        return 0.0
    # integers and booleans have no norm
    if not (a and b and "norm" in a and "norm" in b):
        return math.inf
    finite = [is_finite(one) for one in (a, b)]
    if not all(finite):
        return math.inf if any(finite) else math.nan
    gap = apart(a, b)
    # at least the smallest float: bits may differ without a distance (-0.0)
    return max(ratio(gap, max(a["norm"], b["norm"])), math.ulp(0.0))


def rest_is_equal(place: StepPair) -> bool:
    """Return whether samples and learning rates are equal, and if the world sizes are,
    also the optimizer's state and buffers.
    """
    if samples(place.a) != samples(place.b):
        return False
    # each rank may hold its own shard of the optimizer's state
    own = place.same_size and (state_unlike(place) or buffers_unlike(place, exact=True))
    return not own and all(place.a[x]["lr"] == place.b[y]["lr"] for x, y in place.pairs)
