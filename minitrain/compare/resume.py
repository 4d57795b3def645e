"""A run that resumes another one: the step of the other at which it starts, and what
was not restored there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from minitrain.compare.align import Rows, StepPair, keys_of, rows_at, samples
from minitrain.compare.difference import Cause, Difference, What, Why, why
from minitrain.compare.gradient_causes import cause_in_own, drawn_otherwise
from minitrain.compare.inputs_and_state import at, buffers_unlike
from minitrain.recording.alarm import Row, hashes
from minitrain.recording.format import Recording
from minitrain.recording.sketches import apart, common


@dataclass(frozen=True)
class Resumed:
    """Two recordings from the ``step`` on at which ``side`` starts in the other one,
    whose ``whole`` recording has the steps before as well.
    """

    a: Recording
    b: Recording
    side: str
    step: int
    whole: Recording

    @property
    def other(self) -> str:
        """Return the side that is resumed."""
        return "A" if self.side == "B" else "B"


def resumed_in(a: Recording, b: Recording, start: int | None = None) -> Resumed | None:
    """Find which of two recordings resumes the other one: it starts with the parameters
    that the other had before or after some step, or at its end, and counts its steps
    from 0. Several optimizers are aligned by the steps of the first. ``start`` is the
    step of ``a`` at which ``b`` starts, where it is given.
    """
    if start is not None:
        return _aligned(a, b, start, "B")
    for side, late, straight, end in _both_ways(a, b):
        first = late["before"]
        held = [(row["step"], row["before"]) for row in straight]
        held += [(row["step"] + 1, hashes(row, "parameters")) for row in straight]
        held += [(end["steps"].get("0", 0), hashes(end, "parameters"))] if end else []
        for step, of in sorted(held, key=itemgetter(0)):
            if step and first and all(of.get(n) == first[n] for n in first):
                return _aligned(a, b, step, side)
    return None


def nearest_in(a: Recording, b: Recording) -> tuple[str, int] | None:
    """Return which recording starts near the other one at a later step, and the step;
    None where neither is nearer to it than half of the way that led there.
    """
    for side, late, straight, _ in _both_ways(a, b):
        gaps = [_way(row, late) for row in straight]
        gap, row = min(zip(gaps, straight, strict=True), key=itemgetter(0))
        if 2 * gap < _way(row, straight[0]):
            return side, row["step"]
    return None


def _way(a: Row, b: Row) -> float:
    ours, theirs = a["parameters"], b["parameters"]
    return math.hypot(*(apart(ours[n], theirs[n]) for n in common(ours, theirs)))


def _both_ways(
    a: Recording, b: Recording
) -> Iterator[tuple[str, Row, Sequence[Row], Row | None]]:
    # the first step of one run, the steps and the end of the other, unless both start
    # with the same parameters
    for side, late, straight in (("B", b, a), ("A", a, b)):
        first = late.ranks[min(late.ranks)].steps.get((0, 0))
        one = straight.ranks[min(straight.ranks)]
        begin = one.steps.get((0, 0))
        if first and begin and begin["before"] != first["before"]:
            rows = [row for (number, _), row in one.steps.items() if number == 0]
            yield side, first, rows, one.end


def _aligned(a: Recording, b: Recording, step: int, side: str) -> Resumed:
    if side == "B":
        return Resumed(_from(a, step, 0), _from(b, 0, step), side, step, a)
    return Resumed(_from(a, 0, step), _from(b, step, 0), side, step, b)


def _from(recording: Recording, start: int, by: int) -> Recording:
    # from step ``start`` on, with steps that count ``by`` more
    ranks = {}
    for rank, one in recording.ranks.items():
        first = one.steps.get((0, start))
        begin = first["before"] if first else {}
        steps = {
            (optimizer, step + by): {**row, "step": step + by}
            for (optimizer, step), row in one.steps.items()
            if step >= start
        }
        end = one.end
        if end is not None:
            end = {**end, "steps": {key: n + by for key, n in end["steps"].items()}}
        head = {**one.header, "start": begin, "first": by}
        ranks[rank] = replace(one, header=head, steps=steps, end=end)
    return replace(recording, ranks=ranks)


def scale_unlike(place: StepPair) -> Difference | None:
    """Return where gradients are equal and the ranks' own, before a loss scaler divides
    them by its scale, are not.
    """
    own = cause_in_own(place) if place.same_size else None
    if own is None or own.cause != Cause.OWN_SCALED:
        return None
    much = f"{own.facts['factor']:.6g} times as large before they are unscaled"
    named = place.named([(rank, rank) for rank in own.own])
    return at(place, What.OWN, why(Cause.SCALER_LOST), much, **named)


def cause_of(
    resumed: Resumed, place: StepPair, first: Difference, is_start: bool
) -> Why:
    """Return the probable cause of the ``first`` difference after a resume;
    ``is_start``: it is at the first step, which shows what was not restored.
    """
    late = place.b if resumed.side == "B" else place.a
    kept = all(place.a[x]["moments"] == place.b[y]["moments"] for x, y in place.pairs)
    match first.what:
        case What.DATA:
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


def _of_data(resumed: Resumed, late: Rows, is_start: bool) -> Why:
    read = samples(late)
    rows = (rows_at(resumed.whole, key) for key in keys_of(resumed.whole))
    steps = [next(iter(of.values()))["step"] for of in rows if samples(of) == read]
    # passes that came before the first step, and belong to none
    dropped = any(row["forwards"] > len(row["inputs"]) for row in late.values())
    if is_start and dropped and not any(step < resumed.step for step in steps):
        return why(Cause.SCALER_LOST)
    if not steps:
        return why(Cause.POSITION_LOST)
    facts = {"side": resumed.side, "other": resumed.other, "step": min(steps)}
    return why(Cause.SAMPLER_LOST, **facts)
