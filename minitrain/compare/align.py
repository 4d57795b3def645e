"""Alignment of two recordings: pairs of steps and ranks, and the trajectory of A, which
sets the limits of rounding. A row is what one rank recorded for one step of an
optimizer, with fingerprints of tensors: hash, norm, sketch (short random projection).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from minitrain.compare.limits import FLOAT32, FLOAT64, LINEAR, DtypeLimits
from minitrain.recording.alarm import Row, hashes
from minitrain.recording.format import Recording
from minitrain.recording.rules_of_steps import settings_of
from minitrain.recording.sketches import apart, common, fit, norm, vector

DOUBLE = {"float64", "complex128"}
RowsByRank = Mapping[int, Row]
Pair = tuple[int, int]


def ratio(gap: float, size: float) -> float:
    """Return ``gap / size``: 0 if both are zero, infinity if only the size is."""
    if size > 0:
        return gap / size
    return math.inf if gap else 0.0


def samples(rows: RowsByRank, kind: str = "inputs") -> Counter[str]:
    """Count the samples of a step by digest: of "inputs", or inputs without labels."""
    batches = (batch for row in rows.values() for batch in row.get(kind, ()))
    return Counter(digest for batch in batches for digest in batch)


def same_samples(a: RowsByRank, b: RowsByRank) -> bool:
    """Return whether both runs read the same samples, in any order and padding."""
    ours, theirs = samples(a), samples(b)
    left, right = [*(ours - theirs).elements()], [*(theirs - ours).elements()]
    if len(left) != len(right):
        return False
    short = _unpadded(a) | _unpadded(b)
    for digest in left:
        like = next((one for one in right if _alike(digest, one, short)), None)
        if like is None:
            return False
        right.remove(like)
    return True


def _alike(a: str, b: str, short: Mapping[str, Sequence[str]]) -> bool:
    of_a, of_b = short.get(a, ()), short.get(b, ())
    # only one is padded, or both are with the same element
    return a in of_b or b in of_a or bool(of_a and of_b and of_a[0] == of_b[0])


def _unpadded(rows: RowsByRank) -> dict[str, Sequence[str]]:
    return {
        digest: short
        for row in rows.values()
        for batch, others in zip(row["inputs"], row.get("unpadded", ()), strict=False)
        for digest, short in zip(batch, others, strict=False)
    }


@dataclass(frozen=True)
class Trajectory:
    """How far one optimizer moves parameters. By tensor: ``eps``, spacing of floats at
    1; ``first``, fingerprints after the first recorded step;
    ``first_move``, estimated norm of that step. ``linear``: steps are linear in the
    gradients (SGD), not as with Adam; ``trains_buffers``: training changes buffers.
    """

    eps: Mapping[str, float]
    first: Mapping[str, Row]
    first_move: Mapping[str, float]
    linear: bool
    trains_buffers: bool

    def moved(self, row: Row) -> dict[str, float]:
        """Estimate, by tensor, the distance from the initial weights to ``row``."""
        now = row["parameters"]
        return {
            name: self.first_move[name] + apart(now[name], self.first[name])
            for name in common(self.first, now)
        }


@dataclass(frozen=True)
class RankPairs:
    """Rows of runs A and B by rank, for one step (or the headers of the recordings),
    and the pairs of ranks that are compared.
    """

    a: RowsByRank
    b: RowsByRank
    world_sizes: tuple[int, int]

    @property
    def same_size(self) -> bool:
        """Return whether world sizes are equal: rank r is compared with rank r."""
        return self.world_sizes[0] == self.world_sizes[1]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Pairs (rank of A, rank of B) to compare. If the world sizes differ, the first
        rank of each with all of the other run, as gradients are the same on all ranks.
        """
        if self.same_size:
            return [(rank, rank) for rank in sorted(self.a.keys() & self.b.keys())]
        first_a, first_b = min(self.a), min(self.b)
        pairs = [(first_a, rank) for rank in sorted(self.b)]
        return pairs + [(rank, first_b) for rank in sorted(self.a) if rank != first_a]

    @property
    def first(self) -> tuple[Row, Row]:
        """The row of A and the row of B of the first pair of ranks."""
        a, b = self.pairs[0]
        return self.a[a], self.b[b]

    @property
    def complete(self) -> bool:
        """Return whether both runs have a row for every rank."""
        return (len(self.a), len(self.b)) == self.world_sizes

    def named(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return ``pairs`` as fields of a Difference: ``ranks`` and, if world sizes
        differ, their run ``of``. For all pairs return no fields, which means all ranks.
        """
        if len(pairs) == len(self.pairs):
            return {}
        if self.same_size:
            return {"ranks": tuple(rank for rank, _ in pairs)}
        first = min(self.a)
        if of_b := tuple(y for x, y in pairs if x == first):
            return {"ranks": of_b, "of": "B"}
        return {"ranks": tuple(x for x, _ in pairs), "of": "A"}


@dataclass(frozen=True)
class StepPair(RankPairs):
    """One step of optimizer number ``optimizer`` in A and in B: a row for each rank.

    ``trajectory``: how A moves parameters; ``limits``: largest differences that
    rounding explains at this step. ``twin``: the row of the first rank
    of A's twin (the same run from weights one rounding unit away), or None. ``end``:
    the rows hold the final states of the runs instead of a step.
    """

    optimizer: int
    step: int
    trajectory: Trajectory
    limits: DtypeLimits
    twin: Row | None = None
    end: bool = False

    @property
    def draws_otherwise(self) -> bool:
        """Return whether dropout draws other numbers, as the world sizes differ."""
        rows = (*self.a.values(), *self.b.values())
        return not self.same_size and any(row["draws"] for row in rows)


def header(recording: Recording) -> Row:
    """Return the first rank's header, which describes the run and its model."""
    return next(iter(recording.ranks.values())).header


def rows_at(recording: Recording, key: tuple[int, int]) -> dict[int, Row]:
    """Return the rows for ``key``, (optimizer, step), by rank; not all may have one."""
    ranks = recording.ranks.items()
    return {rank: one.steps[key] for rank, one in ranks if key in one.steps}


def keys_of(recording: Recording) -> list[tuple[int, int]]:
    """Return every recorded (optimizer, step), in the order of the run."""
    rows = recording.ranks.values()
    return [*dict.fromkeys(key for one in rows for key in one.steps)]


def places_of(a: Recording, b: Recording, twin: Recording | None) -> list[StepPair]:
    """Return a StepPair for each step in both recordings, in the order of the run, then
    one with the final states for each optimizer, if anything changed after the last of
    these. ``twin``: a twin of ``a`` whose rows are added, or None.
    """
    sizes = a.world_size, b.world_size
    # models with float64 parameters compute in float64
    kinds = [one["dtype"] for r in (a, b) for one in header(r)["parameters"].values()]
    limits = FLOAT64 if {*kinds} <= DOUBLE else FLOAT32
    trajectories = {n: _trajectory(a, b, n) for n in {n for n, _ in keys_of(a)}}
    places, both = [], {*keys_of(b)}
    for key in (key for key in keys_of(a) if key in both):
        rows = rows_at(a, key), rows_at(b, key)
        first = next(iter(rows_at(twin, key).values()), None) if twin else None
        of = trajectories[key[0]]
        place = StepPair(*rows, sizes, *key, of, limits, first)
        places += [place] if place.pairs else []
    last = {place.optimizer: place for place in places}
    ends = (_end(a, b, twin, place) for place in last.values())
    return places + [end for end in ends if end]


def _end(
    a: Recording, b: Recording, twin: Recording | None, place: StepPair
) -> StepPair | None:
    # None if a rank has no end, the numbers of steps differ, or nothing changed since
    of_twin = {min(twin.ranks): place.twin} if twin and place.twin else {}
    sides = ((a, place.a), (b, place.b), (twin, of_twin))
    ends = [_rows_at_end(r, rows, place) if r else {} for r, rows in sides]
    compared = [row for rows in ends[:2] for row in rows.values()]
    counts = {row["count"] for row in compared}
    is_whole = len(compared) == len(place.a) + len(place.b) and len(counts) == 1
    if not is_whole or not any(row["changed"] for row in compared):
        return None
    step = max(counts.pop() - 1, place.step)
    first = next(iter(ends[2].values()), None)
    return replace(place, step=step, a=ends[0], b=ends[1], twin=first, end=True)


def _rows_at_end(
    recording: Recording, rows: RowsByRank, place: StepPair
) -> dict[int, Row]:
    # the last row of each rank that has an end, with what the rank holds at the end
    found: dict[int, Row] = {}
    for rank, row in rows.items():
        end = recording.ranks[rank].end or {}
        if "parameters" in end:
            names, kinds = row["parameters"], ("parameters", "buffers")
            after = {n: end["parameters"].get(n, names[n]) for n in names}
            now = {**row, "parameters": after, "buffers": end["buffers"], "before": {}}
            now |= {"also": end["also"]} if {"also"} <= row.keys() & end.keys() else {}
            now["count"] = end["steps"].get(str(place.optimizer), 0)
            now["changed"] = row.get("also") != now.get("also") or any(
                hashes(row, kind) != hashes(now, kind) for kind in kinds
            )
            found[rank] = now
    return found


def _trajectory(a: Recording, b: Recording, optimizer: int) -> Trajectory:
    # take the first rank that recorded steps of the optimizer: all move alike
    ranks = a.ranks.values()
    one = next(r for r in ranks if any(key[0] == optimizer for key in r.steps))
    rows = [row for key, row in sorted(one.steps.items()) if key[0] == optimizer]
    first, about = rows[0]["parameters"], one.header["parameters"]
    # the coarser type of both runs, in which rounding is larger
    heads = header(b)["parameters"], about
    types = {name: [h[name]["dtype"] for h in heads if name in h] for name in about}
    if len(rows) > 1 and rows[1]["step"] == rows[0]["step"] + 1:
        second = rows[1]["parameters"]
        move = {n: apart(first[n], second[n]) for n in common(first, second)}
    else:
        rate, gradients = max(rows[0]["lr"], default=0.0), rows[0]["gradients"]
        move, settings = {}, settings_of(rows[0])
        for name in common(first, gradients):
            size = math.sqrt(math.prod(about[name]["shape"]))
            # under Adam each element moves by the rate, even if its gradient is noise
            is_adam = "betas" in settings.get(name, {})
            move[name] = rate * (size if is_adam else min(norm(gradients[name]), size))
    return Trajectory(
        eps={name: max(map(_eps, of)) for name, of in types.items()},
        first=first,
        first_move={name: move.get(name, 0.0) for name in first},
        linear=_is_linear(rows),
        trains_buffers=rows[0]["buffers"] != rows[-1]["buffers"],
    )


def _eps(dtype: str) -> float:
    try:
        # sketches are sums in float64, which limits what they resolve
        return max(torch.finfo(getattr(torch, dtype)).eps, 2.0**-49)
    except (AttributeError, TypeError, NotImplementedError):
        # an integer type, or one without arithmetic
        return 0.0


def _is_linear(rows: Sequence[Row]) -> bool:
    # A step of SGD is a sum of the gradients so far (momentum) and of the weights
    # (weight decay). The first step that can be fitted decides.
    for number, (before, row) in enumerate(pairwise(rows)):
        past = rows[: number + 2]
        if row["step"] != number + rows[0]["step"] + 1:
            break
        held = row["gradients"], row["parameters"], before["parameters"]
        names = common(*held)
        start, end = (vector(r, "parameters", names) for r in (before, row))
        # cheap for each of many steps that are not finite, or do not move
        if not ((end - start).any() and (end - start).isfinite().all()):
            continue
        if len(past) > len(start):
            break
        names = common(*(one["gradients"] for one in past), *held)
        start, end = (vector(r, "parameters", names) for r in (before, row))
        parts = [vector(r, "gradients", names) for r in past]
        found = fit(end - start, [*parts, start])
        # weights that are zero, or parallel to a gradient, cannot be fitted
        found = found or fit(end - start, parts[-1:])
        if found is not None:
            return found[1] < LINEAR
    return False
