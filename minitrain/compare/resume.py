"""Runs that resume another run: the step from which they continue, and components of
the state that were not restored there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from minitrain.compare.align import RowsByRank, StepPair, keys_of, rows_at, samples
from minitrain.compare.difference import Cause, Difference, What, Why, why
from minitrain.compare.gradient_causes import compare_own, drawn_otherwise
from minitrain.compare.step_causes import at, buffers_unlike
from minitrain.core.errors import UserError
from minitrain.recording.alarm import Row, hashes
from minitrain.recording.format import Recording
from minitrain.recording.sketches import apart, common

Starts = Mapping[int, int]


@dataclass(frozen=True)
class Resumed:
    """Recordings ``a`` and ``b`` with aligned steps, one of which resumes the other:
    run ``side`` ("A" or "B") starts at the steps ``starts`` of the other, by optimizer
    index. ``whole``: the resumed run with its earlier steps.
    """

    a: Recording
    b: Recording
    side: str
    starts: dict[int, int]
    whole: Recording

    @property
    def step(self) -> int:
        """Return the first step that is compared, of optimizer 0."""
        return self.starts[0]

    @property
    def other(self) -> str:
        """Return the side of the run that is resumed, "A" or "B"."""
        return "A" if self.side == "B" else "B"


def resumed_in(a: Recording, b: Recording, start: int | None = None) -> Resumed | None:
    """Return the alignment if one recording resumes the other, else None: the later run
    starts with parameters that the other has before or after a step, or at its end, and
    counts steps from 0. ``start``: the step of ``a`` at which ``b`` starts, if known.

    Raises:
        UserError: several steps fit, or none fits one of several optimizers.
    """
    a, b = _by_optimizer(a), _by_optimizer(b)
    for side, late, straight in (("B", b, a), ("A", a, b)):
        if start is not None:
            return _aligned(late, straight, side, start)
        steps = _starts_in(late, straight, 0)
        if steps[1:] and steps[0]:
            raise UserError(
                f"{late.folder}: starts with the parameters of several steps of "
                f"{straight.folder}, {steps[0]} to {steps[-1]}; minitrain verify "
                f"{straight.folder} {late.folder} --from STEP names one"
            )
        if steps and steps[0]:
            return _aligned(late, straight, side, steps[0])
    return None


def _by_optimizer(recording: Recording) -> Recording:
    # the first step of optimizer 0 also holds the parameters of an optimizer that was
    # not known yet; its later steps do not
    ranks = {}
    for rank, one in recording.ranks.items():
        groups = [g for key, row in one.steps.items() if key[0] for g in row["groups"]]
        others = {name for group in groups for name in group["parameters"]}
        steps = {}
        for key, row in one.steps.items():
            kinds = () if key[0] else ("before", "parameters")
            own = {k: {n: row[k][n] for n in row[k] if n not in others} for k in kinds}
            steps[key] = row | own
        ranks[rank] = replace(one, steps=steps)
    return replace(recording, ranks=ranks)


def passed_over(a: Recording, b: Recording) -> tuple[str, int, int] | None:
    """Return (side, first, last): by the distances of parameters, run ``side`` ("A" or
    "B") may start from a checkpoint between the recorded steps ``first`` and ``last``
    of the other run; None if neither does.
    """
    for side, late, straight in (("B", b, a), ("A", a, b)):
        first = late.ranks[min(late.ranks)].steps.get((0, 0))
        one = straight.ranks[min(straight.ranks)]
        rows = [row for (number, _), row in one.steps.items() if number == 0]
        if one.end and "parameters" in one.end and rows:
            last = max(one.end["steps"].get("0", 0) - 1, rows[-1]["step"])
            rows.append({**one.end, "step": last})
        if not (first and rows):
            continue
        gaps = [_way(row, first) for row in rows]
        # one that starts near the start of the other resumes nothing
        pairs = pairwise(zip(gaps, rows, strict=True)) if min(gaps) < gaps[0] else ()
        for (near, here), (far, there) in pairs:
            # 1 on a straight way, 1.4 in the middle of a random walk
            is_between = near + far < 1.5 * _way(here, there)
            if is_between and there["step"] - here["step"] > 1:
                return side, here["step"], there["step"]
    return None


def _way(a: Row, b: Row) -> float:
    ours, theirs = a["parameters"], b["parameters"]
    return math.hypot(*(apart(ours[n], theirs[n]) for n in common(ours, theirs)))


def _starts_in(late: Recording, straight: Recording, number: int) -> list[int]:
    # steps at which ``straight`` has the parameters with which ``late`` starts, and of
    # these, if any, the ones at which it reads the same samples
    one = straight.ranks[min(straight.ranks)]
    first = late.ranks[min(late.ranks)].steps.get((number, 0))
    rows = {step: row for (of, step), row in one.steps.items() if of == number}
    held = [(step, row["before"]) for step, row in rows.items()]
    held += [(step + 1, hashes(row, "parameters")) for step, row in rows.items()]
    if one.end:
        held += [(one.end["steps"].get(str(number), 0), hashes(one.end, "parameters"))]
    if not (first and first["before"]):
        return []
    begun, read = first["before"].items(), samples(rows_at(late, (number, 0)))
    steps = sorted({step for step, of in held if begun <= of.items()})
    like = [s for s in steps if samples(rows_at(straight, (number, s))) == read]
    return like if like and read else steps


def _aligned(late: Recording, straight: Recording, side: str, step: int) -> Resumed:
    starts = {0: step}
    for number in {number for number, _ in keys_of(late)} - {0}:
        steps = _starts_in(late, straight, number)
        if len(steps) != 1:
            raise UserError(
                f"{late.folder}: optimizer {number} starts with the parameters of "
                f"{len(steps)} recorded steps of {straight.folder}, not of one; record "
                "with every=1"
            )
        starts[number] = steps[0]
    both = _from(straight, starts, {}), _from(late, {}, starts)
    return Resumed(*(both if side == "B" else both[::-1]), side, starts, straight)


def _from(recording: Recording, start: Starts, by: Starts) -> Recording:
    # drop the steps before ``start``, and add ``by`` to the numbers of steps
    ranks, named = {}, {str(n): more for n, more in by.items()}
    for rank, one in recording.ranks.items():
        first = one.steps.get((0, start.get(0, 0)))
        steps = {
            (n, step + by.get(n, 0)): {**row, "step": step + by.get(n, 0)}
            for (n, step), row in one.steps.items()
            if step >= start.get(n, 0)
        }
        end = one.end
        if end is not None:
            counts = {n: of + named.get(n, 0) for n, of in end["steps"].items()}
            end = {**end, "steps": counts}
        head = {**one.header, "start": first["before"] if first else {}, "first": by}
        ranks[rank] = replace(one, header=head, steps=steps, end=end)
    return replace(recording, ranks=ranks)


def scale_unlike(place: StepPair) -> Difference | None:
    """Return the difference in the loss scale, or None: the ranks' own gradients, which
    a loss scaler has not yet divided by its scale, differ by a factor. Requires that
    the gradients after unscaling agree.
    """
    own = compare_own(place) if place.same_size else None
    if own is None or own.cause != Cause.OWN_SCALED:
        return None
    much = f"{own.facts['factor']:.6g} times as large before they are unscaled"
    named = place.named([(rank, rank) for rank in own.own])
    return at(place, What.OWN, why(Cause.SCALER_LOST), much, **named)


def cause_of(
    resumed: Resumed, place: StepPair, first: Difference, is_start: bool
) -> Why:
    """Return the probable cause of the ``first`` difference after a resume;
    ``is_start``: ``place`` is the first step, which shows what was not restored.
    """
    late = place.b if resumed.side == "B" else place.a
    kept = all(place.a[x]["moments"] == place.b[y]["moments"] for x, y in place.pairs)
    match first.what:
        case What.DATA if first.why.cause is not Cause.PADDED:
            return _of_data(resumed, late, is_start)
        case What.RATE | What.PARAMETERS | What.STATE if is_start and not kept:
            return why(Cause.OPTIMIZER_LOST)
        case What.RATE:
            return why(Cause.SCHEDULER_LOST)
        case What.BUFFERS if is_start:
            return why(Cause.BUFFERS_LOST)
        case What.ALSO if is_start:
            return why(Cause.ALSO_LOST, tensor=first.tensor)
        case What.GRADIENTS | What.OWN if is_start and place.same_size:
            drawn = [
                x for x, y in place.pairs if drawn_otherwise(place.a[x], place.b[y])
            ]
            if drawn:
                return why(Cause.RANDOM_LOST, ranks=drawn)
            if buffers_unlike(place, exact=True):
                return why(Cause.BUFFERS_LOST)
    return first.why


def _of_data(resumed: Resumed, late: RowsByRank, is_start: bool) -> Why:
    read = samples(late)
    number = next(iter(late.values()))["optimizer"]
    keys = [key for key in keys_of(resumed.whole) if key[0] == number]
    steps = [key[1] for key in keys if samples(rows_at(resumed.whole, key)) == read]
    # forward passes before the first step: a loss scaler skipped steps
    dropped = any(row["forwards"] > len(row["inputs"]) for row in late.values())
    if is_start and dropped and not any(s < resumed.starts[number] for s in steps):
        return why(Cause.NO_STEP)
    if not steps:
        return why(Cause.POSITION_LOST)
    facts = {"side": resumed.side, "other": resumed.other, "step": min(steps)}
    return why(Cause.SAMPLER_LOST, **facts)
