"""One step of two recordings: what differs first there, and whether that is sure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from minitrain.compare.align import (
    Place,
    Resumed,
    common,
    fit,
    keys_of,
    ratio,
    rows_at,
    same_samples,
    samples,
    vector,
)
from minitrain.compare.causes import Cause, cause_in_gradients, is_multiple
from minitrain.compare.difference import (
    NOT_RESTORED,
    SETTINGS,
    Unlike,
    at,
    beside,
    buffers_unlike,
    cause_in_data,
    rates_unlike,
    rest_is_equal,
    settings_unlike,
    state_unlike,
    why_of_rate,
)
from minitrain.compare.tolerances import (
    CLOSE,
    CLOSE_ADAPTIVE,
    FOLLOWS,
    LEAST_DECAY,
    Course,
    Kind,
    Measured,
    beyond_doubt,
    measure,
    stands,
    still_in_one,
)
from minitrain.recording.alarm import in_ranks

KINDS: tuple[Kind, Kind] = ("gradients", "parameters")
OF = {"gradients": "the largest gradient", "parameters": "how far it has moved"}
OPTIMIZER_LOST = "the optimizer's state was not restored"
SCHEDULER_LOST = "the learning rate scheduler was not restored"
POSITION_LOST = "the position in the data, or its order, was not restored"


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
        found = [*self._unlike(place, gradients, parameters)]
        first = next((one for one in found if one.sure), found[0] if found else None)
        mark = "=" if equal else "~"
        if first:
            mark = "x" if first.sure or self.over else "?"
            cause, since = first.cause, self.before.step if self.before else None
            if self.resumed and not self.over:
                cause = _of_resume(self.resumed, place, first)
            first = replace(first, cause=cause, since=since)
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
        if data := self._data(place, gradients, here):
            yield data
        rates = rates_unlike(place) or settings_unlike(place)
        # steps between were made at these rates: what differs by now is of them
        if rates and not consecutive:
            yield rates
        if not gradients.within:
            yield self._gradients(place, gradients, here)
        elif gradients.hides:
            yield _hidden(place, gradients)
        if rates and consecutive:
            yield rates
        exact = self.equal and gradients.equal
        if gradients.within and (one := self._parameters(place, parameters, exact)):
            yield one
        elif gradients.within and parameters.hides:
            yield _hidden(place, parameters)
        if place.same_size and (exact or (gradients.within and parameters.within)):
            yield from buffers_unlike(place, exact)
        if place.same_size and exact:
            yield from state_unlike(place, self.same_torch)

    def _data(self, place: Place, gradients: Measured, here: bool) -> Unlike | None:
        a, b = samples(place.a), samples(place.b)
        there = place.complete or (place.same_size and place.a.keys() == place.b.keys())
        if not (a and b and there):
            return None
        ranks, sure = "", place.same_size
        if same_samples(place.a, place.b):
            # what stands beside padded samples is padded too
            if a != b or beside(place.a) == beside(place.b):
                return None
            much = "tensors beside the samples are others"
            cause = "another mask or table, or what comes first is none of the samples"
        else:
            much, cause = cause_in_data(place, self.before)
            if gradients.within:
                cause = (
                    "the gradients agree: the same samples, padded or passed otherwise?"
                )
            unlike = [
                (x, y)
                for x, y in place.pairs
                if samples({0: place.a[x]}) != samples({0: place.b[y]})
            ]
            ranks = place.named(unlike) if place.same_size and unlike else ""
            # a rank that is missing may have read what these lack
            sure = place.complete
        # a gradient that is a combination of the other run's is of the same samples
        sure = sure and not gradients.within
        sure = sure and not cause_in_gradients(place, gradients, here).pattern
        return at(place, "data", much, cause, ranks=ranks, sure=sure)

    def _gradients(self, place: Place, found: Measured, here: bool) -> Unlike:
        # ``here``: it is this step that takes them apart, and none before it
        cause = cause_in_gradients(place, found, here)
        local = found.own_size and 4 * found.num_beyond_quick <= found.num
        share = max(found.share, found.gap / found.own_size if local else 0.0)
        # what is rounded to 16 bits, a unit in the last place of 32 does not move
        self.twin_tells = self.twin_tells and not cause.coarse
        ranks = place.named(found.pairs)
        if cause.what:
            on_all = len(cause.ranks) == len(place.pairs)
            ranks = "" if on_all else in_ranks(cause.ranks)
        sure = cause.sure or self._beyond_doubt(place, share, self.share)
        return self._measured(place, found, cause, ranks, sure)

    def _parameters(self, place: Place, found: Measured, exact: bool) -> Unlike | None:
        if found.equal:
            return None
        # whatever rounding may do to a tensor that is small
        if still := still_in_one(place, self.course):
            tensor, side, pairs = still
            much, why = "moves in one alone", f"{tensor} does not move in {side}"
            more = {"tensor": tensor, "ranks": place.named(pairs)}
            return at(place, found.kind, much, why, **more)
        before, linear = self.before, self.course.linear
        cause = None
        if not found.within:
            cause = cause_in_parameters(place, before, found, linear)
        elif before is not None:
            cause = cause_of_drift(place, before, found, linear)
        if cause is None:
            return None
        # from the same gradients, to the bit, a step is off by a unit or two
        sure = cause.sure or exact
        share = self._new_share(place, found)
        sure = sure or self._beyond_doubt(place, share, 0.0, adaptive=not linear)
        return self._measured(place, found, cause, place.named(found.pairs), sure)

    def _measured(
        self, place: Place, found: Measured, cause: Cause, ranks: str, sure: bool
    ) -> Unlike:
        # a twin of A, if it is not there, decides if it may read the samples of A
        can_tell = self.twin_tells and not place.draws_otherwise
        twin_decides = can_tell and bool(samples(place.a)) and place.twin is None
        return at(
            place,
            cause.what or found.kind,
            _much(found),
            cause.clause,
            tensor=found.tensor,
            ranks=ranks,
            sure=sure,
            twin_decides=twin_decides and not sure,
        )

    def _beyond_doubt(
        self, place: Place, share: float, before: float, adaptive: bool = False
    ) -> bool:
        if place.draws_otherwise:
            return False
        if place.twin is not None and self.twin_tells:
            return True
        steps = place.step - (-1 if self.before is None else self.before.step)
        return beyond_doubt(place, share, steps, before=before, adaptive=adaptive)

    def _new_share(self, place: Place, found: Measured) -> float:
        # how far the last steps took A and B apart, by how far they went
        if self.before is None:
            names = common(*(row["parameters"] for row in place.first))
            a, b = (vector(row, "parameters", names) for row in place.first)
            return _share(b - a, math.hypot(*self.course.first_move.values()))
        moves = _moves(place, self.before, found)
        if moves is None:
            return found.whole
        ours, theirs, _ = moves
        return _share(theirs - ours, float(ours.norm()))


def _share(gap: Tensor, size: float) -> float:
    return ratio(float(gap.norm()), size) if size > 0 else math.inf


def _hidden(place: Place, found: Measured) -> Unlike:
    # what only the twin allows, where it allows so much that nothing is told
    apart = f"about {found.share:.2g} of {OF[found.kind]} apart"
    much = f"{apart}, allowed {found.allowed_share:.2g}"
    cause = "rounding goes as far, says the twin: a fault could hide"
    more = {"tensor": found.tensor, "sure": False, "onwards": True}
    return at(place, found.kind, much, cause, **more)


def _much(found: Measured) -> str:
    size = found.size if found.kind == "gradients" else found.own_size
    gap = f"{found.gap:.3g} apart"
    if math.isinf(found.gap):
        gap = "not in both, or not finite"
    elif size > 0:
        allowed = f"allowed {found.allowed / size:.2g}"
        gap = f"about {found.gap / size:.2g} of {OF[found.kind]} apart, {allowed}"
    if found.num_beyond > 1:
        gap += f", and {found.num_beyond - 1} more of {found.num} tensors"
    return gap


def _of_resume(resumed: Resumed, place: Place, first: Unlike) -> str:
    # the probable cause of the first difference after a resume
    if first.what == "data":
        mine = samples(place.b if resumed.side == "B" else place.a)
        # one optimizer: the steps of several have numbers of their own
        keys = [key for key in keys_of(resumed.straight) if key[0] == 0]
        again = [key for key in keys if samples(rows_at(resumed.straight, key)) == mine]
        if again:
            step = again[0][1]
            return f"{resumed.side} reads the samples of step {step}: {POSITION_LOST}"
        return POSITION_LOST
    kept = [place.a[x]["moments"] == place.b[y]["moments"] for x, y in place.pairs]
    if first.what == "learning rate":
        return SCHEDULER_LOST if all(kept) else f"{OPTIMIZER_LOST}, with its rate"
    lost = first.what in ("parameters", "optimizer state") and not all(kept)
    return OPTIMIZER_LOST if lost and place.step == resumed.step else first.cause


def cause_in_parameters(
    place: Place, before: Place | None, found: Measured, linear: bool
) -> Cause:
    """Why parameters differ after a step whose gradients and rates do not explain it.

    ``before`` is the recorded step before, where parameters were alike.
    """
    a, b = place.a[found.pairs[0][0]], place.b[found.pairs[0][1]]
    for row, other, side in ((b, a, "B"), (a, b, "A")):
        if stands(row, found.tensor) and not stands(other, found.tensor):
            return Cause(f"{found.tensor} does not move in {side}", sure=True)
    names = common(a["parameters"], b["parameters"])
    ours, theirs = (vector(row, "parameters", names) for row in (a, b))
    pairs = [("A", ours), ("B", theirs)]
    if lost := [side for side, values in pairs if not values.isfinite().all()]:
        return Cause(f"not finite in {' and '.join(lost)}", sure=True)
    if before is None:
        cause = _of_decay(theirs - ours, [], ours, 1)
    else:
        cause = cause_of_drift(place, before, found, linear)
    return cause or Cause(_of_state(place, before))


def _moves(
    place: Place, before: Place, found: Measured
) -> tuple[Tensor, Tensor, Tensor] | None:
    # how far the last steps took A and B, and where A was before them
    x, y = found.pairs[0]
    rows = [place.a[x], before.a.get(x), place.b[y], before.b.get(y)]
    there = [row for row in rows if row is not None]
    if len(there) < len(rows):
        return None
    names = common(*(row["parameters"] for row in there))
    now_a, was_a, now_b, was_b = (vector(row, "parameters", names) for row in there)
    return now_a - was_a, now_b - was_b, was_a


def cause_of_drift(
    place: Place, before: Place, found: Measured, linear: bool
) -> Cause | None:
    """What takes A and B apart step by step, where it is a pattern and no rounding:
    steps of another length, or another weight decay.
    """
    moves = _moves(place, before, found)
    if moves is None:
        return None
    ours, theirs, start = moves
    close = CLOSE if linear else CLOSE_ADAPTIVE
    scaled = fit(theirs, [ours])
    if scaled and is_multiple(scaled, close) and abs(scaled[0][0] - 1) > close:
        factor = scaled[0][0]
        why = why_of_rate(factor, place.world_sizes) or "another learning rate"
        return Cause(f"steps {factor:.3g} times as long: {why}", sure=True)
    return _of_decay(theirs - ours, [ours], start, place.step - before.step)


def _of_decay(
    gap: Tensor, moves: Sequence[Tensor], weights: Tensor, steps: int
) -> Cause | None:
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
    return Cause("another weight decay", sure=True)


def _of_state(place: Place, before: Place | None) -> str:
    if before is None:
        return f"{NOT_RESTORED}, or {SETTINGS}"
    rows = [(x, before.a[x], before.b[y]) for x, y in before.pairs]
    if not place.same_size or any(
        a["parameters"] != b["parameters"] for _, a, b in rows
    ):
        return f"{SETTINGS}, or its own state is another one (not restored?)"
    unlike = [
        rank
        for rank, a, b in rows
        if any(
            a["moments"][name] != b["moments"][name]
            for name in common(a["moments"], b["moments"])
        )
    ]
    if unlike:
        where = f"on {in_ranks(unlike)}, at step {before.step} already"
        return f"{NOT_RESTORED} {where}"
    return f"its state was lost or changed after step {before.step}, or {SETTINGS}"
