"""Differences at a step apart from gradients and parameters: data, learning rates and
settings, buffers, the optimizer's state; and the probable cause of each.
"""

import math
from typing import Any

from minitrain.compare.align import Rows, StepPair, ratio, samples
from minitrain.compare.difference import UNKNOWN, Cause, Difference, What, Why, why
from minitrain.compare.gradient_causes import cause_in_buffers, rate_by_size
from minitrain.compare.limits import CLOSE, SAME_RATE
from minitrain.recording.alarm import Row
from minitrain.recording.rules_of_steps import settings_of
from minitrain.recording.sketches import apart, common, is_finite


def at(place: StepPair, what: What, cause: Why, much: str, **more: Any) -> Difference:
    """Return the difference at this place."""
    more |= {"optimizer": place.optimizer, "end": place.end}
    return Difference(place.step, what, cause, much, **more)


def cause_in_data(place: StepPair, before: StepPair | None) -> Why:
    """Return why the samples of a step differ."""
    a, b = samples(place.a), samples(place.b)
    inputs = [samples(rows, "unlabelled") for rows in (place.a, place.b)]
    if inputs[0] and inputs[0] == inputs[1]:
        return why(Cause.LABELS)
    for side, rows, ours, theirs in (("B", place.b, b, a), ("A", place.a, a, b)):
        more = [ours[digest] for digest in ours - theirs]
        if more and min(more) > 1:
            return _of_duplicates(side, rows, sum(more) - len(more))
    if before is not None:
        for side, now, rows in (("B", b, before.b), ("A", a, before.a)):
            if now == samples(rows):
                return why(Cause.BATCH_AGAIN, side=side, step=before.step)
    if a.total() != b.total():
        return why(Cause.BATCH_SIZE)
    return why(Cause.SAMPLES, who="B") if a & b else why(Cause.ORDER)


def _of_duplicates(side: str, rows: Rows, count: int) -> Why:
    each = [samples({rank: row}) for rank, row in rows.items()]
    if len(each) > 1 and all(one == each[0] for one in each):
        return why(Cause.NO_SAMPLER, side=side)
    return why(Cause.REPEATED, side=side, count=count)


def rates_unlike(place: StepPair) -> Difference | None:
    """Return the first ranks with other learning rates."""
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
    # group by group; where there are other groups, the same rates among them
    ours, theirs = a["lr"], b["lr"]
    if len(ours) != len(theirs):
        ours, theirs = sorted({*ours}), sorted({*theirs})
    return _same_setting(tuple(ours), tuple(theirs))


def settings_unlike(place: StepPair) -> Difference | None:
    """Return the first parameter that the optimizer has with other settings."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for x, y in place.pairs:
        a, b = settings_of(place.a[x]), settings_of(place.b[y])
        for name in common(a, b):
            for key in common(a[name], b[name]):
                if not _same_setting(a[name][key], b[name][key]):
                    found.setdefault((name, key), []).append((x, y))
    for (name, key), pairs in found.items():
        x, y = pairs[0]
        ours, theirs = (settings_of(r)[name][key] for r in (place.a[x], place.b[y]))
        much, named = f"{key} = {ours} against {theirs}", place.named(pairs)
        cause = why(Cause.SETTING)
        return at(place, What.SETTINGS, cause, much, tensor=name, **named)
    return None


def _same_setting(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_setting, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME_RATE)
    return bool(a == b)


def state_unlike(place: StepPair) -> Difference | None:
    """Return where the optimizer's state has other bits."""
    of_a, of_b = (state_held(rows) for rows in (place.a, place.b))
    for name in {**of_a, **of_b}:
        a, b = of_a.get(name, {}), of_b.get(name, {})
        # where ranks divide the state, part with part
        pairs = [(rank, rank) for rank in a if rank in b]
        pairs = pairs or [(min(a, default=0), min(b, default=0))]
        unlike = [(y, y) for x, y in pairs if a.get(x) != b.get(y)]
        if unlike:
            much = "other bits" if a and b else f"none in {'B' if a else 'A'}"
            named = place.named(unlike) if a and b else {}
            cause = why(Cause.OPTIMIZER)
            return at(place, What.STATE, cause, much, tensor=name, **named)
    return None


def also_unlike(place: StepPair) -> Difference | None:
    """Return the first tensor of the modules beside the model with other bits."""
    for x, y in place.pairs:
        a, b = (row.get("also", {}) for row in (place.a[x], place.b[y]))
        for name in common(a, b):
            if a[name] != b[name]:
                return at(place, What.ALSO, UNKNOWN, "other bits", tensor=name)
    return None


def state_held(rows: Rows) -> dict[str, dict[int, str]]:
    """Return hashes of what the optimizer keeps of each parameter, by rank."""
    found: dict[str, dict[int, str]] = {}
    for rank, row in rows.items():
        for name, digest in row["moments"].items():
            found.setdefault(name, {})[rank] = digest
    return found


def buffers_unlike(place: StepPair, exact: bool) -> Difference | None:
    """Return the buffer that is farthest apart: where all before is equal to the bit by
    any other bit, and else by more than 16 bits round; one that is not finite in one
    alone is sure then.
    """
    far: dict[str, dict[int, float]] = {}
    for rank, _ in place.pairs:
        a, b = place.a[rank]["buffers"], place.b[rank]["buffers"]
        for name in {**a, **b}:
            share = share_apart(a.get(name), b.get(name))
            if share > (0.0 if exact else place.limits.coarse):
                far.setdefault(name, {})[rank] = share
    if not far:
        return None
    name = max(far, key=lambda one: max(far[one].values()))
    share, ranks = max(far[name].values()), [*far[name]]
    entries = [rows[ranks[0]]["buffers"].get(name) for rows in (place.a, place.b)]
    finite = {
        bool(entry and ("norm" not in entry or is_finite(entry))) for entry in entries
    }
    much = f"about {share:.2g} of its size apart"
    if math.isinf(share):
        much = "other numbers" if finite == {True} else "not in both, or not finite"
    cause = cause_in_buffers(ranks, place.world_sizes[0]) if exact else None
    more = {"tensor": name, **place.named([(rank, rank) for rank in ranks])}
    sure = exact or len(finite) == 2
    cause = cause or why(Cause.UNREAD)
    return at(place, What.BUFFERS, cause, much, sure=sure, **more)


def share_apart(a: Row | None, b: Row | None) -> float:
    """Return the distance of two fingerprints as a share of the larger; infinity where
    there is none, and 0 for equal bits alone.
    """
    if a and b and a["hash"] == b["hash"]:
        return 0.0
    # a count, or a flag, has no norm
    if not (a and b and "norm" in a and "norm" in b):
        return math.inf
    gap = apart(a, b)
    if math.isinf(gap):
        return gap
    # other bits, if only that a zero is negative
    return max(ratio(gap, max(a["norm"], b["norm"])), math.ulp(0.0))


def rest_is_equal(place: StepPair) -> bool:
    """Return whether all but gradients and parameters is equal where it must be."""
    if samples(place.a) != samples(place.b):
        return False
    # an optimizer's share of its state is of a rank's own
    own = place.same_size and (state_unlike(place) or buffers_unlike(place, exact=True))
    return not own and all(place.a[x]["lr"] == place.b[y]["lr"] for x, y in place.pairs)
