"""Why data, learning rates or parameters of two recordings differ at a step."""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from minitrain.compare.align import (
    Place,
    Row,
    common,
    fit,
    joined,
    length,
    samples,
    sketches,
)
from minitrain.compare.causes import Cause
from minitrain.compare.diagnosis import CLOSE
from minitrain.compare.still import stands
from minitrain.compare.tolerances import Measured
from minitrain.recording.alarm import in_ranks

# of a step: what Adam makes of rounding leaves so much of a fit
ADAPTIVE = 0.02
# a difference that so much of follows the weights is no rounding, if it is as large as
# the weights times this, a step
FOLLOWS = 0.2
LEAST_DECAY = 1e-6
SETTINGS = "another optimizer, or another setting of it"
OPTIMIZER_LOST = "the optimizer's state was not restored"
SCHEDULER_LOST = "the learning rate scheduler was not restored"
POSITION_LOST = "the position in the data, or its order, was not restored"
NOT_RESTORED = "the optimizer's own state is another one (not restored?)"


def cause_in_data(place: Place, others: Sequence[Place]) -> tuple[str, str]:
    """By how much the samples of a step differ, and why."""
    a, b = samples(place.a), samples(place.b)
    shared = sum((a & b).values())
    much = f"{shared} of {sum(a.values())} samples are the same"
    if sum(a.values()) != sum(b.values()):
        much += f", B has {sum(b.values())}"
    inputs = [samples(rows, "unlabelled") for rows in (place.a, place.b)]
    if inputs[0] and inputs[0] == inputs[1]:
        return much, "the labels are others, and the inputs the same"
    for side, ours, theirs in (("B", b, a), ("A", a, b)):
        twice = [digest for digest, count in ours.items() if count > theirs[digest]]
        again = [digest for digest in twice if ours[digest] > 1]
        if again and len(again) == len(twice):
            return much, _duplicated(side, ours, again, place)
    for place_before in others:
        for side, now, before in (
            ("B", b, samples(place_before.b)),
            ("A", a, samples(place_before.a)),
        ):
            if now == before and place_before.step < place.step:
                return much, (
                    f"{side} reads the batch of step {place_before.step} again: no new "
                    "order for this epoch?"
                )
        if b == samples(place_before.a):
            return much, f"B reads what A reads at step {place_before.step}"
    if b < a or a < b:
        few, all_of_it = ("B", "A") if b < a else ("A", "B")
        return much, f"{few} reads a part of what {all_of_it} reads: another batch size"
    if sum(a.values()) != sum(b.values()):
        return much, "another global batch size"
    if not shared:
        return (
            much,
            "another order of the samples (seed?), or other inputs of the model",
        )
    return much, "other samples among them"


def _duplicated(
    side: str, ours: Counter[str], again: Sequence[str], place: Place
) -> str:
    rows = place.b if side == "B" else place.a
    each = [samples({rank: row}) for rank, row in rows.items()]
    if len(each) > 1 and all(one == each[0] for one in each):
        return f"all ranks of {side} read the same samples: no sampler of their own"
    count = sum(ours[digest] - 1 for digest in again)
    return f"{side} reads {count} samples again (padded to a multiple of the ranks?)"


def order_lost(side: str, step: int) -> str:
    """The cause where a resumed run reads what the other read at an earlier step."""
    return f"{side} reads the samples of step {step}: {POSITION_LOST}"


def cause_in_rates(a: Row, b: Row, world_sizes: tuple[int, int]) -> tuple[str, str]:
    """By how much learning rates differ, and why."""
    ours, theirs = (sorted({*row["lr"]}) for row in (a, b))
    much = f"{_numbers(ours)} against {_numbers(theirs)}"
    if len(ours) != len(theirs) or 0.0 in ours:
        return much, "another schedule, or other groups of parameters"
    ratios = [y / x for x, y in zip(ours, theirs, strict=True)]
    if max(ratios) - min(ratios) > CLOSE * abs(ratios[0]):
        return much, "another schedule, or other groups of parameters"
    return much, _of_rate(ratios[0], world_sizes) or f"{ratios[0]:.4g} times as large"


def _of_rate(factor: float, world_sizes: tuple[int, int]) -> str:
    for side, times, world_size in (
        ("B's", factor, world_sizes[1]),
        ("A's", 1 / factor if factor else 0.0, world_sizes[0]),
    ):
        if world_size > 1 and abs(times * world_size - 1) < CLOSE:
            return f"{side} learning rate is divided by the number of processes"
        if world_size > 1 and abs(times / world_size - 1) < CLOSE:
            return f"{side} learning rate is multiplied by the number of processes"
    return ""


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values) or "none"


def cause_in_parameters(
    place: Place, before: Place | None, found: Measured, linear: bool
) -> Cause:
    """Why parameters differ after a step whose gradients and rates do not explain it.

    ``before`` is the recorded step before, where parameters were alike.
    """
    a, b = place.a[found.pairs[0][0]], place.b[found.pairs[0][1]]
    names = common(a["parameters"], b["parameters"])
    for row, other, side in ((b, a, "B"), (a, b, "A")):
        if stands(row, found.tensor) and not stands(other, found.tensor):
            return Cause(f"{found.tensor} does not move in {side}", sure=True)
    ours, theirs = (joined(sketches(row, "parameters"), names) for row in (a, b))
    pairs = [("A", ours), ("B", theirs)]
    if lost := [side for side, values in pairs if not values.isfinite().all()]:
        return Cause(f"not finite in {' and '.join(lost)}", sure=True)
    if before is not None:
        if cause := cause_of_drift(place, before, found, linear):
            return cause
    elif cause := _of_first_step(ours, theirs, a, names, place.world_sizes):
        return cause
    return Cause(_of_state(place, before))


def cause_of_drift(
    place: Place, before: Place, found: Measured, linear: bool
) -> Cause | None:
    """What takes A and B apart step by step, where it is a pattern and no rounding:
    steps of another length, or another weight decay.
    """
    a, b = found.pairs[0]
    rows = place.a[a], place.b[b], before.a.get(a), before.b.get(b)
    if any(row is None for row in rows):
        return None
    names = common(*(row["parameters"] for row in rows if row))
    now_a, now_b, was_a, was_b = (
        joined(sketches(row, "parameters"), names) for row in rows if row
    )
    moved, start = (now_a - was_a, now_b - was_b), was_a
    close = CLOSE if linear else ADAPTIVE
    scaled = fit(moved[1], [moved[0]])
    if scaled and scaled[1] < close:
        (factor,), rest = scaled
        if abs(factor - 1) > max(close, 10 * rest):
            why = _of_rate(factor, place.world_sizes) or "another learning rate"
            return Cause(f"steps {factor:.3g} times as long: {why}", sure=True)
    steps = place.step - before.step
    return _of_decay(moved[1] - moved[0], [moved[0]], start, steps)


def _of_decay(
    gap: Tensor, moves: Sequence[Tensor], weights: Tensor, steps: int
) -> Cause | None:
    """Where the gap goes along the weights themselves."""
    found = fit(gap, [weights, *moves])
    if found is None or not length(weights):
        return None
    (decay, *_), rest = found
    if rest > FOLLOWS or abs(decay) < LEAST_DECAY * steps:
        return None
    # and not along the moves alone
    without = fit(gap, moves)
    if without is not None and without[1] < 2 * rest:
        return None
    return Cause("another weight decay", sure=True)


def _of_first_step(
    ours: Tensor,
    theirs: Tensor,
    a: Row,
    names: Sequence[str],
    world_sizes: tuple[int, int],
) -> Cause | None:
    """Of step 0 only what came of it is recorded: SGD's goes along the gradients."""
    held = common(a["gradients"], dict.fromkeys(names))
    rate = max(a["lr"], default=0.0)
    if len(held) == len(names) and rate:
        found = fit(theirs - ours, [joined(sketches(a, "gradients"), names)])
        if found and found[1] < 10 * CLOSE:
            factor = 1 - found[0][0] / rate
            why = _of_rate(factor, world_sizes) or "another learning rate"
            return Cause(f"a step {factor:.3g} times as long: {why}", sure=True)
    return _of_decay(theirs - ours, [], ours, 1)


def _of_state(place: Place, before: Place | None) -> str:
    if before is None:
        return f"{NOT_RESTORED}, or {SETTINGS}"
    unlike = [
        (x, y)
        for x, y in before.pairs
        if any(
            before.a[x]["moments"][name] != before.b[y]["moments"][name]
            for name in common(before.a[x]["moments"], before.b[y]["moments"])
        )
    ]
    rounded = any(
        before.a[x]["parameters"] != before.b[y]["parameters"] for x, y in before.pairs
    )
    if rounded or not place.same_size:
        return f"{SETTINGS}, or its own state is another one (not restored?)"
    if unlike:
        ranks = in_ranks([rank for rank, _ in unlike])
        return f"{NOT_RESTORED} on {ranks}, at step {before.step} already"
    return f"its state was lost or changed after step {before.step}, or {SETTINGS}"
