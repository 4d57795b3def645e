"""Comparison of one step of two recordings: the first difference, and whether it is
sure (rounding cannot explain it): see :meth:`Comparer._is_sure`, and difference.SURE.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from minitrain.compare import step_causes
from minitrain.compare.align import RowsByRank, StepPair, ratio, same_samples, samples
from minitrain.compare.difference import Cause, Difference, What, Why, why
from minitrain.compare.distances import Distance, distance
from minitrain.compare.gradient_causes import cause_in_gradients
from minitrain.compare.resume import Resumed, cause_of, scale_unlike
from minitrain.compare.step_causes import at
from minitrain.recording.alarm import Row
from minitrain.recording.sketches import common, is_finite, vector

# the largest factor by which rounding grows in a step
GROWTH = 2.0
OF = {What.GRADIENTS: "the largest gradient", What.PARAMETERS: "how far it has moved"}
# the kinds that rounding changes
ROUNDED = (What.GRADIENTS, What.OWN, What.PARAMETERS)


@dataclass(frozen=True)
class StepCompared:
    """Result for a recorded step, or the ``end`` (final states). ``mark``: ``=`` equal
    bits, ``~`` within rounding, ``?`` undecided, ``x`` different; ``gradients``,
    ``parameters``: their distances; ``first``: the first difference, or None.
    """

    optimizer: int
    step: int
    mark: str
    gradients: Distance
    parameters: Distance
    first: Difference | None = None
    end: bool = False


@dataclass(frozen=True)
class Step:
    """A step with its distances. ``before``: the step compared before it, or None;
    ``is_next``: no step lies between; ``cause``: of gradients beyond their limits, None
    if they are within; ``exact``: all bits up to the gradients of this step are equal.
    """

    place: StepPair
    before: StepPair | None
    is_next: bool
    gradients: Distance
    parameters: Distance
    cause: Why | None
    exact: bool


@dataclass
class Comparer:
    """Comparison of the steps of one optimizer, one after the other.

    ``same_torch``: both ran one torch version; ``resumed``: set if one run resumes the
    other. The other fields are the state between steps: ``before``, the last one;
    ``noise``, the largest share of rounding in gradients so far, and ``share`` that of
    ``before``; ``equal``, all bits so far were equal; ``over``, a sure difference was
    found; ``twin_tells``, a twin (the run from weights one rounding unit away) would
    show if a difference is rounding.
    """

    same_torch: bool
    resumed: Resumed | None = None
    before: StepPair | None = None
    noise: float = 0.0
    share: float = 0.0
    equal: bool = True
    twin_tells: bool = True
    over: bool = False

    def compare(self, place: StepPair) -> StepCompared:
        """Compare ``place``, the next step of the run, and return the result."""
        place = place if place.same_size else _averaged(place)
        gradients = distance(place, What.GRADIENTS, self.noise)
        parameters = distance(place, What.PARAMETERS, self.noise)
        is_next = self.before is None or self.before.step + 1 == place.step
        exact, cause = self.equal and gradients.equal, None
        if not gradients.within:
            cause = cause_in_gradients(place, gradients, is_next or parameters.within)
            # a twin, which starts one float32 unit away, shows nothing about 16 bits
            self.twin_tells = self.twin_tells and cause.cause != Cause.LOWER
        step = Step(place, self.before, is_next, gradients, parameters, cause, exact)
        first = self._first(step)
        equal = gradients.equal and parameters.equal
        equal = equal and step_causes.rest_is_equal(place)
        mark = "=" if equal else "~"
        if first:
            mark = "x" if first.sure or self.over else "?"
        self.over = self.over or mark == "x"
        self.equal = self.equal and equal
        self.before, self.share = place, gradients.share
        # a distance that only the twin allows may be no rounding
        if gradients.within and not gradients.num_beyond_quick:
            self.noise = max(self.noise, min(gradients.whole, 1.0))
        at_step = place.optimizer, place.step
        return StepCompared(*at_step, mark, gradients, parameters, first, place.end)

    def _first(self, step: Step) -> Difference | None:
        # the first difference that is sure, or else the first one
        place, found = step.place, [one for one in self._differences(step) if one]
        if not found:
            return None
        sure = next((one for one in found if self._is_sure(step, one)), None)
        first = sure or found[0]
        cause, since = first.why, self.before.step if self.before else None
        if self.resumed and not self.over:
            start = self.resumed.starts.get(place.optimizer)
            is_start = self.before is None and place.step == start
            cause = cause_of(self.resumed, place, first, is_start)
        # a twin of A would decide, if it can repeat what A computes
        twin = self.twin_tells and not place.draws_otherwise and bool(samples(place.a))
        twin = twin and place.twin is None and not sure and first.what in ROUNDED
        # what a resume did not restore can be sure where the size of its effect is not
        is_sure = sure is not None or cause.sure
        return replace(first, why=cause, since=since, sure=is_sure, twin_decides=twin)

    def _differences(self, step: Step) -> Iterator[Difference | None]:
        # each difference may explain the ones after it
        place, gradients, parameters = step.place, step.gradients, step.parameters
        yield _in_data(step)
        rates = step_causes.rates_unlike(place) or step_causes.settings_unlike(place)
        # the rates applied to the steps between, too, so they come before their effects
        if not step.is_next:
            yield rates
        if step.cause or gradients.hides:
            yield _far(place, gradients, step.cause or why(Cause.HIDDEN))
        yield rates
        if gradients.within:
            yield _in_parameters(step)
            if parameters.hides:
                yield _far(place, parameters, why(Cause.HIDDEN))
        bits = step.exact and parameters.equal
        if place.same_size and (step.exact or (gradients.within and parameters.within)):
            # in a step the buffers come before the parameters
            yield step_causes.buffers_unlike(place, bits if place.end else step.exact)
        # other versions of torch may store the same state in another form
        if place.same_size and bits and self.same_torch:
            yield step_causes.state_unlike(place)
        if bits:
            yield step_causes.also_unlike(place)
        if self.resumed and gradients.within:
            yield scale_unlike(place)

    def _is_sure(self, step: Step, one: Difference) -> bool:
        # whether rounding cannot explain ``one``, a difference at ``step``
        place, found, limits = step.place, step.gradients, step.place.limits
        if one.what == What.DATA:
            # a gradient that combines the other run's micro-batches read the same
            # samples, and a missing rank may have read the samples that are missing
            return place.complete and bool(step.cause and not step.cause.same_samples)
        # only the twin's limit allows the distance, and is too wide to exclude a fault
        if one.why.cause == Cause.HIDDEN:
            return False
        # step_causes.py judges buffers, and the other kinds are not rounded
        if one.why.sure or one.what not in ROUNDED:
            return one.sure
        # steps from equal gradients differ by a unit or two
        if step.exact:
            return True
        if place.draws_otherwise:
            return False
        # a twin with infinities or NaNs shows nothing
        twin = place.twin["gradients"].values() if place.twin else ()
        if place.twin and self.twin_tells and all(map(is_finite, twin)):
            return True
        # rounding to 16 bits, or of the step before as it grows, does not explain it
        share, share_before, coarse = found.share, self.share, limits.coarse
        if one.what == What.PARAMETERS:
            share = _share_of_steps(place, step.before, step.parameters)
            share_before = 0.0
            coarse = coarse if place.trajectory.linear else limits.coarse_adaptive
        elif found.own_size and 4 * found.num_beyond_quick <= found.num:
            share = max(share, found.gap / found.own_size)
        steps = place.step - (-1 if step.before is None else step.before.step)
        grown = max(share_before, limits.unit) * GROWTH ** min(steps, 64)
        return not share <= max(coarse, grown)


def _in_data(step: Step) -> Difference | None:
    place = step.place
    a, b = samples(place.a), samples(place.b)
    there = place.complete or (place.same_size and place.a.keys() == place.b.keys())
    if not (a and b and there) or same_samples(place.a, place.b):
        return None
    much = f"{(a & b).total()} of {a.total()} samples are the same"
    much += f", B has {b.total()}" if a.total() != b.total() else ""
    unlike = [
        (x, y)
        for x, y in place.pairs
        if samples({0: place.a[x]}) != samples({0: place.b[y]})
    ]
    named = place.named(unlike) if place.same_size and unlike else {}
    cause = why(Cause.PADDED)
    if not step.gradients.within:
        cause = step_causes.cause_in_data(place, step.before)
    return at(place, What.DATA, cause, much, **named)


def _in_parameters(step: Step) -> Difference | None:
    place, found = step.place, step.parameters
    # also for a small tensor, whose limits are wide
    still = None if found.equal else step_causes.still_in_one(place)
    if still:
        tensor, side, pairs = still
        stands = why(Cause.STANDS, tensor=tensor, side=side)
        more = {"tensor": tensor, **place.named(pairs)}
        return at(place, found.kind, stands, "moves in one alone", **more)
    if found.within:
        return None
    return _far(place, found, _not_finite(place, found) or why(Cause.OPTIMIZER))


def _far(place: StepPair, found: Distance, cause: Why) -> Difference:
    pairs = [(rank, rank) for rank in cause.own] or found.pairs
    is_hidden = cause.cause == Cause.HIDDEN
    more = {"onwards": True} if is_hidden else place.named(pairs)
    what = What.OWN if cause.own else found.kind
    return at(place, what, cause, _much(found), tensor=found.tensor, **more)


def _much(found: Distance) -> str:
    size = found.size if found.kind == What.GRADIENTS else found.own_size
    gap = f"{found.gap:.3g} apart"
    if math.isinf(found.gap):
        gap = "not in both, or not finite"
    elif size > 0:
        allowed = f"allowed {found.allowed / size:.2g}"
        gap = f"about {found.gap / size:.2g} of {OF[found.kind]} apart, {allowed}"
    if found.num_beyond > 1:
        gap += f", and {found.num_beyond - 1} more of {found.num} tensors"
    return gap


def _share_of_steps(place: StepPair, before: StepPair | None, found: Distance) -> float:
    # the distance that the steps since ``before`` add, as a share of their length
    x, y = found.pairs[0]
    rows = [place.a[x], place.b[y]]
    if before is not None:
        if x not in before.a or y not in before.b:
            return found.whole
        rows += [before.a[x], before.b[y]]
    names = common(*(row["parameters"] for row in rows))
    a, b, *was = (vector(row, "parameters", names) for row in rows)
    size = math.hypot(*place.trajectory.first_move.values())
    if was:
        a, b = a - was[0], b - was[1]
        size = float(a.norm())
    return ratio(float((b - a).norm()), size)


def _not_finite(place: StepPair, found: Distance) -> Why | None:
    for side, rows, rank in zip("AB", (place.a, place.b), found.pairs[0], strict=True):
        entry = rows[rank]["parameters"].get(found.tensor)
        if entry and not is_finite(entry):
            return why(Cause.NOT_FINITE, side=side)
    return None


def _averaged(place: StepPair) -> StepPair:
    # an optimizer that averages gradients in its step leaves each rank its own: compare
    # their mean, or their sum if the loss is divided by the ranks
    first_a, first_b = (row["gradients"] for row in place.first)
    ranks_a, ranks_b = place.world_sizes
    a = _with_means(place.a, ranks_a, first_b)
    return replace(place, a=a, b=_with_means(place.b, ranks_b, first_a))


def _with_means(rows: RowsByRank, world_size: int, other: Row) -> RowsByRank:
    ranks, means = [*rows.values()], {}
    held = [row[kind] for row in ranks for kind in ("gradients", "parameters", "own")]
    for name in common(other, *held) if len(ranks) == world_size else ():
        own = [row["gradients"][name] for row in ranks]
        after = {row["parameters"][name]["hash"] for row in ranks}
        has_moved = after != {ranks[0]["before"].get(name)}
        sketches = [entry["sketch"] for entry in own]
        keeps_own = sketches == [row["own"][name] for row in ranks]
        agree = len({entry["hash"] for entry in own}) > len(after) == 1
        if agree and has_moved and keeps_own:
            total = [sum(column) for column in zip(*sketches, strict=True)]
            sums = [[x / n for x in total] for n in (world_size, 1)]
            sketch = min(sums, key=lambda one: math.dist(one, other[name]["sketch"]))
            means[name] = {"hash": "", "norm": math.hypot(*sketch), "sketch": sketch}
    return {
        r: {**row, "gradients": row["gradients"] | means} for r, row in rows.items()
    }
