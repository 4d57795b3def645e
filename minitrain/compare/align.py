"""The recorded steps of two runs side by side: the ranks that are compared, and what
the runs came to after the last recorded step.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from minitrain.compare.limits import FLOAT32, FLOAT64, Limits
from minitrain.compare.trajectory import Trajectory, trajectory_of
from minitrain.recording.alarm import Row, hashes
from minitrain.recording.format import Recording

DOUBLE = {"float64", "complex128"}
Rows = Mapping[int, Row]
Pair = tuple[int, int]


def ratio(gap: float, size: float) -> float:
    """Return a gap as a share of ``size``; infinity where only the gap has a size."""
    if size > 0:
        return gap / size
    return math.inf if gap else 0.0


def samples(rows: Rows, kind: str = "inputs") -> Counter[str]:
    """The digests of all samples that these ranks read for one step."""
    batches = (batch for row in rows.values() for batch in row.get(kind, ()))
    return Counter(digest for batch in batches for digest in batch)


def same_samples(a: Rows, b: Rows) -> bool:
    """Return whether two sets of rows read the same samples, padding aside."""
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
    # one of them is not padded, or both are, with the same element
    return a in of_b or b in of_a or bool(of_a and of_b and of_a[0] == of_b[0])


def _unpadded(rows: Rows) -> dict[str, Sequence[str]]:
    return {
        digest: short
        for row in rows.values()
        for batch, others in zip(row["inputs"], row.get("unpadded", ()), strict=False)
        for digest, short in zip(batch, others, strict=False)
    }


@dataclass(frozen=True)
class RankPairs:
    """Rows of the ranks of A and of B that are compared."""

    a: Rows
    b: Rows
    world_sizes: tuple[int, int]

    @property
    def same_size(self) -> bool:
        """Return whether rank r of A has its counterpart in rank r of B."""
        return self.world_sizes[0] == self.world_sizes[1]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Pairs of ranks of A and B that are compared: where the world sizes differ,
        the first of either with all of the other, since they should have the same.
        """
        if self.same_size:
            return [(rank, rank) for rank in sorted(self.a.keys() & self.b.keys())]
        first_a, first_b = min(self.a), min(self.b)
        pairs = [(first_a, rank) for rank in sorted(self.b)]
        return pairs + [(rank, first_b) for rank in sorted(self.a) if rank != first_a]

    @property
    def first(self) -> tuple[Row, Row]:
        """The rows of the first pair."""
        a, b = self.pairs[0]
        return self.a[a], self.b[b]

    @property
    def complete(self) -> bool:
        """Return whether no rank is missing."""
        return (len(self.a), len(self.b)) == self.world_sizes

    def named(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """The ranks of these pairs, and of which run they are; none for all pairs."""
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
    """One step of one optimizer in A and in B: a row for each rank.

    ``trajectory`` is A's until its end, ``limits`` are those of the type in which both
    train, ``twin`` is the row of the first rank of A's twin. ``end``: it is what both
    came to after the last recorded step.
    """

    optimizer: int
    step: int
    trajectory: Trajectory
    limits: Limits
    twin: Row | None = None
    end: bool = False

    @property
    def draws_otherwise(self) -> bool:
        """Return whether a forward pass drew random numbers, at other world sizes."""
        rows = (*self.a.values(), *self.b.values())
        return not self.same_size and any(row["draws"] for row in rows)


def header(recording: Recording) -> Row:
    """Return the header of the first rank."""
    return next(iter(recording.ranks.values())).header


def rows_at(recording: Recording, key: tuple[int, int]) -> dict[int, Row]:
    """The rows of one optimizer and step, by rank."""
    ranks = sorted(recording.ranks.items())
    return {rank: one.steps[key] for rank, one in ranks if key in one.steps}


def keys_of(recording: Recording) -> list[tuple[int, int]]:
    """All that a rank recorded, by optimizer and step, in the order of the run."""
    rows = recording.ranks.values()
    return [*dict.fromkeys(key for one in rows for key in one.steps)]


def places_of(a: Recording, b: Recording, twin: Recording | None) -> list[StepPair]:
    """Return the steps that ranks which are compared both recorded, in the order of the
    run, and for each optimizer the end, if anything came after the last of them.
    """
    sizes = a.world_size, b.world_size
    # where all parameters are float64, so is what is computed
    kinds = [one["dtype"] for r in (a, b) for one in header(r)["parameters"].values()]
    limits = FLOAT64 if {*kinds} <= DOUBLE else FLOAT32
    trajectories = {n: trajectory_of(a, n) for n in {n for n, _ in keys_of(a)}}
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
    # none where a rank has no end, the numbers of steps differ, or nothing came after
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


def _rows_at_end(recording: Recording, rows: Rows, place: StepPair) -> dict[int, Row]:
    # the last row of each rank that has an end, as if it were one step later
    found: dict[int, Row] = {}
    for rank, row in rows.items():
        end = recording.ranks[rank].end or {}
        if "parameters" in end:
            names, kinds = row["parameters"], ("parameters", "buffers")
            after = {n: end["parameters"].get(n, names[n]) for n in names}
            now = {**row, "parameters": after, "buffers": end["buffers"], "before": {}}
            now["count"] = end["steps"].get(str(place.optimizer), 0)
            now["changed"] = any(hashes(row, k) != hashes(now, k) for k in kinds)
            found[rank] = now
    return found
