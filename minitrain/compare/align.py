"""The recorded steps of two runs side by side: which rank is held to which, what the
runs came to after the last recorded step, and where a resumed run begins in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from minitrain.compare.sketches import Row, Rows, common, is_finite
from minitrain.recording.alarm import hashes, in_ranks
from minitrain.recording.format import Recording

DOUBLE = {"float64", "complex128"}


@dataclass(frozen=True)
class Place:
    """One step of one optimizer in A and in B: a row for each rank. ``twin`` is that of
    the first rank of A's twin; ``double`` says that both train in float64, ``end`` that
    it is what they came to after the last recorded step.
    """

    optimizer: int
    step: int
    a: Rows
    b: Rows
    world_sizes: tuple[int, int]
    twin: Row | None = None
    double: bool = False
    end: bool = False

    @property
    def same_size(self) -> bool:
        """Whether rank r of A has its counterpart in rank r of B."""
        return self.world_sizes[0] == self.world_sizes[1]

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Which rank of A is held to which of B."""
        return pairs_of(self.a, self.b, self.same_size)

    @property
    def first(self) -> tuple[Row, Row]:
        """The rows of the first pair."""
        a, b = self.pairs[0]
        return self.a[a], self.b[b]

    @property
    def complete(self) -> bool:
        """Whether no rank is missing."""
        return (len(self.a), len(self.b)) == self.world_sizes

    @property
    def draws_otherwise(self) -> bool:
        """Whether a forward pass drew random numbers, on other numbers of ranks."""
        rows = (*self.a.values(), *self.b.values())
        return not self.same_size and any(row["draws"] for row in rows)

    def named(self, pairs: Sequence[tuple[int, int]]) -> str:
        """The ranks of these pairs; an empty text for all pairs."""
        if len(pairs) == len(self.pairs):
            return ""
        if self.same_size:
            return in_ranks([rank for rank, _ in pairs])
        first = min(self.a)
        if of_b := [y for x, y in pairs if x == first]:
            return f"{in_ranks(of_b)} of B"
        return f"{in_ranks([x for x, _ in pairs])} of A"


def pairs_of(a: Rows, b: Rows, same_size: bool) -> list[tuple[int, int]]:
    """The ranks of A and B that are compared. Where the world sizes differ, the first
    of either with all of the other: they should have the same.
    """
    if same_size:
        return [(rank, rank) for rank in sorted(a.keys() & b.keys())]
    first_a, first_b = min(a), min(b)
    pairs = [(first_a, rank) for rank in sorted(b)]
    return pairs + [(rank, first_b) for rank in sorted(a) if rank != first_a]


def header(recording: Recording) -> Row:
    """That of the first rank."""
    return next(iter(recording.ranks.values())).header


def rows_at(recording: Recording, key: tuple[int, int]) -> dict[int, Row]:
    """The rows of one optimizer and step, by rank."""
    ranks = sorted(recording.ranks.items())
    return {rank: one.steps[key] for rank, one in ranks if key in one.steps}


def keys_of(recording: Recording) -> list[tuple[int, int]]:
    """All that a rank recorded, by optimizer and step, in the order of the run."""
    rows = recording.ranks.values()
    return [*dict.fromkeys(key for one in rows for key in one.steps)]


def places_of(a: Recording, b: Recording, twin: Recording | None) -> list[Place]:
    """The steps that ranks which are held to each other both recorded, in the order of
    the run, and for each optimizer the end.
    """
    sizes = a.world_size, b.world_size
    # where all parameters are float64, so is what is computed
    kinds = [one["dtype"] for r in (a, b) for one in header(r)["parameters"].values()]
    places = []
    both = {*keys_of(b)}
    for key in (key for key in keys_of(a) if key in both):
        rows = rows_at(a, key), rows_at(b, key)
        of_twin = _usable(rows_at(twin, key), rows[0]) if twin else None
        place = Place(*key, *rows, sizes, of_twin, {*kinds} <= DOUBLE)
        places += [place] if place.pairs else []
    last = {place.optimizer: place for place in places}
    ends = (_end(a, b, twin, place) for place in last.values())
    return places + [end for end in ends if end]


def _usable(twin: Rows, a: Rows) -> Row | None:
    # one that is not finite where A is shows nothing
    if not twin:
        return None
    row, first = twin[min(twin)], a[min(a)]
    usable = all(
        is_finite(row[kind][name]) or not is_finite(first[kind][name])
        for kind in ("gradients", "parameters")
        for name in common(row[kind], first[kind])
    )
    return row if usable else None


def _end(
    a: Recording, b: Recording, twin: Recording | None, place: Place
) -> Place | None:
    # none where a rank has no end, the numbers of steps differ, or nothing came after
    ends = [_rows_at_end(*side, place) for side in ((a, place.a), (b, place.b))]
    counts = {row["count"] for rows in ends for row in rows.values()}
    if (len(ends[0]), len(ends[1])) != (len(place.a), len(place.b)) or len(counts) != 1:
        return None
    changed = any(
        hashes(row, kind) != hashes(rows[rank], kind)
        for rows, of_end in zip((place.a, place.b), ends, strict=True)
        for rank, row in of_end.items()
        for kind in ("parameters", "buffers")
    )
    if not changed:
        return None
    of_twin = {}
    if twin and place.twin:
        of_twin = _rows_at_end(twin, {min(twin.ranks): place.twin}, place)
    step = max(counts.pop() - 1, place.step)
    usable = _usable(of_twin, ends[0])
    return replace(place, step=step, a=ends[0], b=ends[1], twin=usable, end=True)


def _rows_at_end(recording: Recording, rows: Rows, place: Place) -> dict[int, Row]:
    # the last row of each rank that has an end, as if it were one step later
    found: dict[int, Row] = {}
    for rank, row in rows.items():
        end = recording.ranks[rank].end
        if end is not None and "parameters" in end:
            after = end["parameters"]
            found[rank] = {
                **row,
                "count": end["steps"].get(str(place.optimizer), 0),
                "parameters": {
                    n: after.get(n, v) for n, v in row["parameters"].items()
                },
                "buffers": end["buffers"],
                "before": {},
            }
    return found


@dataclass(frozen=True)
class Resumed:
    """Both recordings from the ``step`` on at which ``side`` starts, with the steps of
    the other, the ``straight`` one, which was not interrupted.
    """

    a: Recording
    b: Recording
    side: str
    step: int
    straight: Recording

    @property
    def clause(self) -> str:
        """The alignment, for the reader."""
        other = "A" if self.side == "B" else "B"
        return f"{self.side} resumes {other} at step {self.step}: compared from there"


def resumed_in(a: Recording, b: Recording) -> Resumed | None:
    """Find which of two recordings resumes the other one: it starts with the parameters
    that the other had before some later step, and counts its steps from 0.
    """
    for side, late, straight in (("B", b, a), ("A", a, b)):
        first = late.ranks[min(late.ranks)].steps.get((0, 0))
        rows = straight.ranks[min(straight.ranks)].steps
        begin = rows.get((0, 0))
        if first is None or begin is None or begin["before"] == first["before"]:
            continue
        for (optimizer, step), row in rows.items():
            if optimizer == 0 and row["before"] and row["before"] == first["before"]:
                pair = _from(straight, step, 0), _from(late, 0, step)
                a, b = pair if side == "B" else pair[::-1]
                return Resumed(a, b, side, step, straight)
    return None


def _from(recording: Recording, start: int, by: int) -> Recording:
    # from step ``start`` on, with steps that count ``by`` more
    ranks = {}
    for rank, one in recording.ranks.items():
        first = one.steps.get((0, start))
        begin = first["before"] if first else one.header["start"]
        steps = {
            (optimizer, step + by): {**row, "step": step + by}
            for (optimizer, step), row in one.steps.items()
            if step >= start
        }
        end = one.end
        if end is not None:
            end = {**end, "steps": {key: n + by for key, n in end["steps"].items()}}
        ranks[rank] = replace(
            one, header={**one.header, "start": begin}, steps=steps, end=end
        )
    return replace(recording, ranks=ranks)
