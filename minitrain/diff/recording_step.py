"""One step of two recordings: what differs first there, and whether that is sure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from minitrain.diff.recording_causes import cause_in_gradients
from minitrain.diff.recording_clauses import (
    cause_in_data,
    cause_in_parameters,
    cause_of_drift,
)
from minitrain.diff.recording_limits import (
    COARSE,
    COARSE_ADAPTIVE,
    UNIT,
    Course,
    Kind,
    Measured,
    beyond_doubt,
    measure,
)
from minitrain.diff.recording_places import (
    Place,
    common,
    in_ranks,
    joined,
    length,
    samples,
    sketches,
)
from minitrain.diff.recording_unlike import (
    Unlike,
    hidden_unlike,
    rates_unlike,
    rest_is_equal,
)

KINDS: tuple[Kind, Kind] = ("gradients", "parameters")


@dataclass(frozen=True)
class StepCompared:
    """One recorded step: ``=`` equal bits, ``~`` within rounding, ``?`` undecided,
    ``x`` different, with the ``first`` difference.
    """

    optimizer: int
    step: int
    mark: str
    gradients: Measured
    parameters: Measured
    first: Unlike | None = None


class Comparer:
    """Holds the steps of one optimizer to each other, one after the other."""

    def __init__(self, course: Course, same_torch: bool) -> None:
        self.course = course
        self.same_torch = same_torch
        self.before: Place | None = None
        self.noise = UNIT
        # of the gradients, at the recorded step before
        self.share = UNIT
        self.equal = True
        self.twin_tells = True
        self.over = False

    def compare(self, place: Place) -> StepCompared:
        """What differs at ``place``, the next one."""
        gradients, parameters = (
            measure(place, kind, self.course, self.noise) for kind in KINDS
        )
        equal = gradients.equal and parameters.equal and rest_is_equal(place)
        found = [*self._unlike(place, gradients, parameters)]
        first = next((one for one in found if one.sure), found[0] if found else None)
        mark = "=" if equal else "~"
        if first:
            mark = "x" if first.sure or self.over else "?"
        self.over = self.over or mark == "x"
        self.equal = self.equal and equal
        self.before = place
        self.share = max(UNIT, gradients.share)
        if gradients.within:
            self.noise = max(self.noise, min(gradients.whole, 1.0))
        step = place.optimizer, place.step
        return StepCompared(*step, mark, gradients, parameters, first)

    def _unlike(
        self, place: Place, gradients: Measured, parameters: Measured
    ) -> Iterator[Unlike]:
        # in the order in which one follows from the other
        if one := self._data(place, gradients):
            yield one
        rates = rates_unlike(place)
        consecutive = self.before is None or self.before.step + 1 == place.step
        # steps between were made at these rates: what differs by now is of them
        if rates and not consecutive:
            yield rates
        if not gradients.within:
            yield self._gradients(place, gradients, consecutive or parameters.within)
        if rates and consecutive:
            yield rates
        exact = self.equal and gradients.equal
        if gradients.within and (one := self._parameters(place, parameters, exact)):
            yield one
        if exact and place.same_size:
            yield from hidden_unlike(place, self.same_torch)

    def _data(self, place: Place, gradients: Measured) -> Unlike | None:
        a, b = samples(place.a), samples(place.b)
        if a == b or not (a and b and place.complete):
            return None
        earlier = [] if self.before is None else [self.before]
        much, cause = cause_in_data(place, earlier)
        if gradients.within:
            cause = "the gradients agree: the same samples, padded or passed otherwise?"
        unlike = (
            [
                r
                for r, _ in place.pairs
                if samples({0: place.a[r]}) != samples({0: place.b[r]})
            ]
            if place.same_size
            else []
        )
        where = in_ranks(unlike) if len(unlike) < len(place.pairs) and unlike else ""
        return self._say(place, "data", much, cause, "", where, not gradients.within)

    def _gradients(self, place: Place, found: Measured, here: bool) -> Unlike:
        """``here``: it is this step that takes them apart, and none before it."""
        cause = cause_in_gradients(place, found, here)
        local = found.own_size and 4 * found.num_beyond_quick <= found.num
        share = max(found.share, found.gap / found.own_size if local else 0.0)
        # what is rounded to 16 bits, a unit in the last place of 32 does not move
        self.twin_tells = self.twin_tells and not cause.coarse
        sure = cause.sure or self._beyond_doubt(place, share, self.share, COARSE)
        ranks = _where(place, found)
        if cause.what:
            on_all = len(cause.ranks) == len(place.pairs)
            ranks = "" if on_all else in_ranks(cause.ranks)
        what = cause.what or found.kind
        return self._say(
            place, what, _much(found), cause.clause, found.tensor, ranks, sure
        )

    def _parameters(self, place: Place, found: Measured, exact: bool) -> Unlike | None:
        if found.equal:
            return None
        before, linear = self.before, self.course.linear
        cause = None
        if found.within and before is not None:
            cause = cause_of_drift(place, before, found, linear)
            sure = cause is not None
        elif found.within:
            return None
        else:
            cause = cause_in_parameters(place, before, found, linear)
            coarse = COARSE if linear else COARSE_ADAPTIVE
            share = self._new_share(place, found)
            # from the same gradients, to the bit, a step is off by a unit or two
            sure = cause.sure or exact or self._beyond_doubt(place, share, UNIT, coarse)
        if cause is None:
            return None
        where = _where(place, found)
        much = _much(found)
        return self._say(
            place, found.kind, much, cause.clause, found.tensor, where, sure
        )

    def _beyond_doubt(
        self, place: Place, share: float, before: float, coarse: float
    ) -> bool:
        if place.draws and not place.same_size:
            return False
        if place.twin is not None and self.twin_tells:
            return True
        steps = place.step - (-1 if self.before is None else self.before.step)
        return beyond_doubt(share, before, steps, coarse)

    def _new_share(self, place: Place, found: Measured) -> float:
        """How far the last steps took A and B apart, by how far they went."""
        pair = found.pairs[0]
        now = place.a[pair[0]], place.b[pair[1]]
        names = common(*(row["parameters"] for row in now))
        a, b = (joined(sketches(row, "parameters"), names) for row in now)
        if self.before is None:
            went = math.hypot(*self.course.first_move.values())
            return _ratio(length(b - a), went)
        rows = self.before.a.get(pair[0]), self.before.b.get(pair[1])
        if rows[0] is None or rows[1] is None:
            return found.whole
        was_a, was_b = (
            joined(sketches(row, "parameters"), names) for row in rows if row
        )
        return _ratio(length((b - a) - (was_b - was_a)), length(a - was_a))

    def _say(
        self,
        place: Place,
        what: str,
        much: str,
        cause: str,
        tensor: str = "",
        ranks: str = "",
        sure: bool = True,
    ) -> Unlike:
        since = None if self.before is None else self.before.step
        return Unlike(
            place.step, what, much, cause, tensor, ranks, sure, since, place.optimizer
        )


def _where(place: Place, found: Measured) -> str:
    """The ranks where it is unlike; none where it is on all."""
    if len(found.pairs) == len(place.pairs):
        return ""
    if place.same_size:
        return in_ranks([rank for rank, _ in found.pairs])
    first = min(place.a)
    of_b = [y for x, y in found.pairs if x == first]
    if of_b:
        return f"{in_ranks(of_b)} of B"
    return f"{in_ranks([x for x, _ in found.pairs])} of A"


def _much(found: Measured) -> str:
    of = "the largest gradient" if found.kind == "gradients" else "how far it has moved"
    size = found.size if found.kind == "gradients" else found.own_size
    gap = f"{found.gap:.3g} apart"
    if size > 0:
        allowed = f"allowed {found.allowed / size:.2g}"
        gap = f"about {found.gap / size:.2g} of {of} apart, {allowed}"
    if found.num_beyond > 1:
        gap += f", and {found.num_beyond - 1} more of {found.num} tensors"
    return gap


def _ratio(gap: float, size: float) -> float:
    return gap / size if size > 0 else math.inf
