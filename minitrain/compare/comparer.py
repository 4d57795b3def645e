"""Comparison of one step of two recordings: the first difference, and whether it is
sure (rounding cannot explain it).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minitrain.compare import step_causes
from minitrain.compare.align import RowsByRank, StepPair, same_samples, samples
from minitrain.compare.difference import Cause, Difference, What, Why, why
from minitrain.compare.distances import Distance, distance
from minitrain.compare.gradient_causes import cause_in_gradients
from minitrain.compare.resume import Resumed, cause_of, scale_unlike
from minitrain.compare.step_causes import at
from minitrain.recording.alarm import Row
from minitrain.recording.sketches import common, is_finite

# the largest factor by which rounding grows in a step
GROWTH = 2.0
OF = {What.GRADIENTS: "the largest gradient", What.PARAMETERS: "how far it has moved"}


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


@dataclass
class Comparer:
    """Comparison of the steps of one optimizer, one after the other.

    ``same_torch``: both ran one torch version; ``resumed``: set if one run resumes the
    other. State: ``before``, the last step compared; ``equal``, all bits so far were
    equal; ``over``, a sure difference was found; ``twin_tells``, a twin (the run from
    weights one rounding unit away) would show if a difference is rounding.
    """

    same_torch: bool
    resumed: Resumed | None = None
    before: StepPair | None = None
    # the largest share of rounding in the gradients so far, and the one at the recorded
    # step before
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
        equal = (
            gradients.equal and parameters.equal and step_causes.rest_is_equal(place)
        )
        found = [one for one in self._unlike(place, gradients, parameters) if one]
        first = next((one for one in found if one.sure), found[0] if found else None)
        mark = "=" if equal else "~"
        if first:
            cause, since = first.why, self.before.step if self.before else None
            if self.resumed and not self.over:
                start = self.resumed.starts.get(place.optimizer)
                is_start = self.before is None and place.step == start
                cause = cause_of(self.resumed, place, first, is_start)
            sure = first.sure or cause.sure
            first = replace(first, why=cause, since=since, sure=sure)
            mark = "x" if sure or self.over else "?"
        self.over = self.over or mark == "x"
        self.equal = self.equal and equal
        self.before = place
        self.share = gradients.share
        # a distance that only the twin allows may be no rounding
        if gradients.within and not gradients.num_beyond_quick:
            self.noise = max(self.noise, min(gradients.whole, 1.0))
        step = place.optimizer, place.step
        return StepCompared(*step, mark, gradients, parameters, first, place.end)

    def _unlike(
        self, place: StepPair, gradients: Distance, parameters: Distance
    ) -> Iterator[Difference | None]:
        consecutive = self.before is None or self.before.step + 1 == place.step
        here = consecutive or parameters.within
        # in causal order: each difference explains the ones after it
        yield self._data(place, gradients, here)
        rates = step_causes.rates_unlike(place) or step_causes.settings_unlike(place)
        # the rates applied to the steps between, too, so they come before their effects
        if not consecutive:
            yield rates
        if not gradients.within:
            yield self._gradients(place, gradients, here)
        elif gradients.hides:
            yield _hidden(place, gradients)
        yield rates
        exact = self.equal and gradients.equal
        if gradients.within:
            yield self._parameters(place, parameters, exact)
            if parameters.hides:
                yield _hidden(place, parameters)
        bits = exact and parameters.equal
        if place.same_size and (exact or (gradients.within and parameters.within)):
            # in a step the buffers come before the parameters
            yield step_causes.buffers_unlike(place, bits if place.end else exact)
        # other versions of torch may store the same state in another form
        if place.same_size and bits and self.same_torch:
            yield step_causes.state_unlike(place)
        if bits:
            yield step_causes.also_unlike(place)
        if self.resumed and gradients.within:
            yield scale_unlike(place)

    def _data(
        self, place: StepPair, gradients: Distance, here: bool
    ) -> Difference | None:
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
        if gradients.within:
            return at(place, What.DATA, why(Cause.PADDED), much, sure=False, **named)
        # a gradient that combines the other run's micro-batches read the same
        # samples, and a missing rank may have read the samples that are missing here
        pattern = cause_in_gradients(place, gradients, here)
        sure = place.complete and not pattern.same_samples
        cause = step_causes.cause_in_data(place, self.before)
        return at(place, What.DATA, cause, much, sure=sure, **named)

    def _gradients(self, place: StepPair, found: Distance, here: bool) -> Difference:
        # ``here``: the difference begins at this step
        cause = cause_in_gradients(place, found, here)
        local = found.own_size and 4 * found.num_beyond_quick <= found.num
        share = max(found.share, found.gap / found.own_size if local else 0.0)
        # a twin, which starts one float32 unit away, shows nothing about 16 bits
        self.twin_tells = self.twin_tells and cause.cause != Cause.LOWER
        pairs = [(rank, rank) for rank in cause.own] or found.pairs
        sure = cause.sure or self._beyond_doubt(place, share, self.share)
        return self._measured(place, found, cause, pairs, sure)

    def _parameters(
        self, place: StepPair, found: Distance, exact: bool
    ) -> Difference | None:
        if found.equal:
            return None
        # also for a small tensor, whose limits are wide
        if still := step_causes.still_in_one(place):
            tensor, side, pairs = still
            stands = why(Cause.STANDS, tensor=tensor, side=side)
            more = {"tensor": tensor, **place.named(pairs)}
            return at(place, found.kind, stands, "moves in one alone", **more)
        if found.within and self.before is None:
            return None
        cause, share = step_causes.drift_of(place, self.before, found)
        if not found.within:
            cause = cause or _not_finite(place, found) or why(Cause.OPTIMIZER)
        if cause is None:
            return None
        # steps from equal gradients differ by a unit or two
        sure = cause.sure or exact
        sure = sure or self._beyond_doubt(
            place, share, 0.0, adaptive=not place.trajectory.linear
        )
        return self._measured(place, found, cause, found.pairs, sure)

    def _measured(
        self,
        place: StepPair,
        found: Distance,
        cause: Why,
        pairs: Sequence[tuple[int, int]],
        sure: bool,
    ) -> Difference:
        # a twin of A would decide, if it can repeat what A computes
        can_tell = self.twin_tells and not place.draws_otherwise and not sure
        return at(
            place,
            What.OWN if cause.own else found.kind,
            cause,
            _much(found),
            tensor=found.tensor,
            sure=sure,
            twin_decides=can_tell and bool(samples(place.a)) and place.twin is None,
            **place.named(pairs),
        )

    def _beyond_doubt(
        self, place: StepPair, share: float, before: float, adaptive: bool = False
    ) -> bool:
        # whether rounding cannot have grown from ``before`` to ``share``
        if place.draws_otherwise:
            return False
        # a twin with infinities or NaNs shows nothing
        twin = place.twin["gradients"].values() if place.twin else ()
        if place.twin and self.twin_tells and all(map(is_finite, twin)):
            return True
        steps = place.step - (-1 if self.before is None else self.before.step)
        limits = place.limits
        grown = max(before, limits.unit) * GROWTH ** min(steps, 64)
        coarse = limits.coarse_adaptive if adaptive else limits.coarse
        return not share <= max(coarse, grown)


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


def _hidden(place: StepPair, found: Distance) -> Difference:
    # only the twin's limit allows this distance, and it is too wide to exclude a fault
    more = {"tensor": found.tensor, "sure": False, "onwards": True}
    return at(place, found.kind, why(Cause.HIDDEN), _much(found), **more)


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


def _not_finite(place: StepPair, found: Distance) -> Why | None:
    sides = zip("AB", (place.a, place.b), found.pairs[0], strict=True)
    for side, rows, rank in sides:
        entry = rows[rank]["parameters"].get(found.tensor)
        if entry and not is_finite(entry):
            return why(Cause.NOT_FINITE, side=side)
    return None
