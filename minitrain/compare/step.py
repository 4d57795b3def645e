"""One step of two recordings: what differs first there, and whether that is sure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from minitrain.compare.align import (
    Place,
    beside,
    common,
    joined,
    length,
    of_pairs,
    same_samples,
    samples,
    sketches,
)
from minitrain.compare.buffers import buffers_apart, buffers_unlike
from minitrain.compare.causes import cause_in_gradients
from minitrain.compare.clauses import (
    cause_in_data,
    cause_in_parameters,
    cause_of_drift,
)
from minitrain.compare.difference import (
    Unlike,
    rates_unlike,
    rest_is_equal,
    settings_unlike,
    state_unlike,
)
from minitrain.compare.resume import Resumed
from minitrain.compare.still import still_in_one
from minitrain.compare.tolerances import (
    Kind,
    Measured,
    beyond_doubt,
    measure,
    step_beyond_doubt,
)
from minitrain.compare.trajectory import Course
from minitrain.recording.alarm import in_ranks

KINDS: tuple[Kind, Kind] = ("gradients", "parameters")
OF = {"gradients": "the largest gradient", "parameters": "how far it has moved"}


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
    end: bool = False


class Comparer:
    """Holds the steps of one optimizer to each other, one after the other."""

    def __init__(
        self, course: Course, same_torch: bool, resumed: Resumed | None = None
    ) -> None:
        self.course = course
        self.resumed = resumed
        self.same_torch = same_torch
        self.before: Place | None = None
        self.noise = 0.0
        # of the gradients, at the recorded step before
        self.share = 0.0
        self.equal = True
        self.twin_tells = True
        self.over = False

    def compare(self, place: Place) -> StepCompared:
        """What differs at ``place``, the next one."""
        gradients, parameters = (
            measure(place, kind, self.course, self.noise) for kind in KINDS
        )
        equal = gradients.equal and parameters.equal and rest_is_equal(place)
        if place.same_size:
            equal = equal and not any(buffers_unlike(place))
        found = [*self._unlike(place, gradients, parameters)]
        first = next((one for one in found if one.sure), found[0] if found else None)
        if first and self.resumed and not self.over:
            first = replace(first, cause=self.resumed.cause(place, first))
        mark = "=" if equal else "~"
        if first:
            mark = "x" if first.sure or self.over else "?"
        self.over = self.over or mark == "x"
        self.equal = self.equal and equal
        self.before = place
        self.share = gradients.share
        # what a twin alone excuses may be another thing than rounding
        if gradients.within and not gradients.num_beyond_quick:
            self.noise = max(self.noise, min(gradients.whole, 1.0))
        step = place.optimizer, place.step
        return StepCompared(*step, mark, gradients, parameters, first, place.end)

    def _unlike(
        self, place: Place, gradients: Measured, parameters: Measured
    ) -> Iterator[Unlike]:
        consecutive = self.before is None or self.before.step + 1 == place.step
        here = consecutive or parameters.within
        # in the order in which one follows from the other
        data = self._data(place, gradients)
        # a gradient that is a combination of the other run's is of the same samples
        if (
            data
            and data.sure
            and not cause_in_gradients(place, gradients, here).pattern
        ):
            yield data
        elif data:
            yield replace(data, sure=False) if data.sure else data
        rates = rates_unlike(place) or settings_unlike(place)
        # steps between were made at these rates: what differs by now is of them
        if rates and not consecutive:
            yield rates
        if not gradients.within:
            yield self._gradients(place, gradients, here)
        elif gradients.by_twin:
            yield self._by_twin(place, gradients)
        if rates and consecutive:
            yield rates
        exact = self.equal and gradients.equal
        if gradients.within and (one := self._parameters(place, parameters, exact)):
            yield one
        elif gradients.within and parameters.by_twin:
            yield self._by_twin(place, parameters)
        if exact and place.same_size:
            yield from buffers_unlike(place)
            yield from state_unlike(place, self.same_torch)
        elif place.same_size and gradients.within and parameters.within:
            yield from buffers_apart(place)

    def _data(self, place: Place, gradients: Measured) -> Unlike | None:
        a, b = samples(place.a), samples(place.b)
        there = place.complete or (place.same_size and place.a.keys() == place.b.keys())
        if not (a and b and there):
            return None
        if same_samples(place.a, place.b):
            # what stands beside padded samples is padded too
            return self._beside(place, gradients) if a == b else None
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
        # a rank that is missing may have read what these lack
        sure = place.complete and not gradients.within
        return self._say(place, "data", much, cause, "", where, sure)

    def _beside(self, place: Place, gradients: Measured) -> Unlike | None:
        """What forward passes got beside the samples, or instead of them."""
        if beside(place.a) == beside(place.b):
            return None
        much = "tensors beside the samples are others"
        cause = "another mask or table, or what comes first is none of the samples"
        sure = place.same_size and not gradients.within
        return self._say(place, "data", much, cause, sure=sure)

    def _gradients(self, place: Place, found: Measured, here: bool) -> Unlike:
        """``here``: it is this step that takes them apart, and none before it."""
        cause = cause_in_gradients(place, found, here)
        local = found.own_size and 4 * found.num_beyond_quick <= found.num
        share = max(found.share, found.gap / found.own_size if local else 0.0)
        # what is rounded to 16 bits, a unit in the last place of 32 does not move
        self.twin_tells = self.twin_tells and not cause.coarse
        sure = cause.sure or self._beyond_doubt(place, share)
        ranks = of_pairs(place, found.pairs)
        if cause.what:
            on_all = len(cause.ranks) == len(place.pairs)
            ranks = "" if on_all else in_ranks(cause.ranks)
        what = cause.what or found.kind
        one = self._say(
            place, what, _much(found), cause.clause, found.tensor, ranks, sure
        )
        return replace(one, twin_decides=not sure and self._twin_decides(place))

    def _parameters(self, place: Place, found: Measured, exact: bool) -> Unlike | None:
        if found.equal:
            return None
        # whatever rounding may do to a tensor that is small
        if still := still_in_one(place, self.course):
            much, ranks = "moves in one alone", of_pairs(place, still.pairs)
            why = f"{still.tensor} does not move in {still.side}"
            return self._say(place, found.kind, much, why, still.tensor, ranks)
        before, linear = self.before, self.course.linear
        cause = None
        if found.within and before is not None:
            cause = cause_of_drift(place, before, found, linear)
            sure = cause is not None
        elif found.within:
            return None
        else:
            cause = cause_in_parameters(place, before, found, linear)
            share = self._new_share(place, found)
            # from the same gradients, to the bit, a step is off by a unit or two
            sure = cause.sure or exact or self._beyond_doubt(place, share, linear)
        if cause is None:
            return None
        where = of_pairs(place, found.pairs)
        much = _much(found)
        one = self._say(
            place, found.kind, much, cause.clause, found.tensor, where, sure
        )
        return replace(one, twin_decides=not sure and self._twin_decides(place))

    def _twin_decides(self, place: Place) -> bool:
        """Whether a twin of A, which is not there, would decide."""
        drawn = place.draws and not place.same_size
        # a twin has to read the samples of A
        can_tell = self.twin_tells and not drawn and bool(samples(place.a))
        return can_tell and place.twin is None

    def _by_twin(self, place: Place, found: Measured) -> Unlike:
        """What only the twin allows, where it allows so much that nothing is told."""
        assert found.by_twin
        gap, allowed = found.by_twin.share, found.by_twin.allowed
        much = f"about {gap:.2g} of {OF[found.kind]} apart, allowed {allowed:.2g}"
        cause = "rounding goes as far, says the twin: a fault could hide"
        tensor = found.by_twin.tensor
        one = self._say(place, found.kind, much, cause, tensor, sure=False)
        return replace(one, onwards=True)

    def _beyond_doubt(
        self, place: Place, share: float, linear: bool | None = None
    ) -> bool:
        """``linear`` is of parameters."""
        if place.draws and not place.same_size:
            return False
        if place.twin is not None and self.twin_tells:
            return True
        steps = place.step - (-1 if self.before is None else self.before.step)
        if linear is None:
            return beyond_doubt(place, share, self.share, steps)
        return step_beyond_doubt(place, share, steps, linear)

    def _new_share(self, place: Place, found: Measured) -> float:
        """How far the last steps took A and B apart, by how far they went."""
        pair = found.pairs[0]
        now = place.a[pair[0]], place.b[pair[1]]
        if self.before is None:
            names = common(*(row["parameters"] for row in now))
            a, b = (joined(sketches(row, "parameters"), names) for row in now)
            went = math.hypot(*self.course.first_move.values())
            return _ratio(length(b - a), went)
        rows = self.before.a.get(pair[0]), self.before.b.get(pair[1])
        if rows[0] is None or rows[1] is None:
            return found.whole
        kept = [sketches(row, "parameters") for row in (*now, *rows) if row]
        names = common(*kept)
        a, b, was_a, was_b = (joined(parts, names) for parts in kept)
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
            place.step,
            what,
            much,
            cause,
            tensor,
            ranks,
            sure,
            since,
            place.optimizer,
            end=place.end,
        )


def _much(found: Measured) -> str:
    of = OF[found.kind]
    size = found.size if found.kind == "gradients" else found.own_size
    gap = f"{found.gap:.3g} apart"
    if math.isinf(found.gap):
        gap = "not in both, or not finite"
    elif size > 0:
        allowed = f"allowed {found.allowed / size:.2g}"
        gap = f"about {found.gap / size:.2g} of {of} apart, {allowed}"
    if found.num_beyond > 1:
        gap += f", and {found.num_beyond - 1} more of {found.num} tensors"
    return gap


def _ratio(gap: float, size: float) -> float:
    return gap / size if size > 0 else math.inf
