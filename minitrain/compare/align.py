"""The recorded steps of two runs side by side: which rank is held to which, what the
runs came to after the last recorded step, where a resumed run begins in the other; and
arithmetic on the sketches of their tensors.

A sketch is linear in its tensor, and as long as it on average. So the distance of two
sketches estimates that of two tensors, and what is a sum of tensors is the same sum of
their sketches.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minitrain.recording.alarm import hashes, in_ranks
from minitrain.recording.format import Recording

DOUBLE = {"float64", "complex128"}
Row = Mapping[str, Any]
Rows = Mapping[int, Row]
Sketches = Mapping[str, Sequence[float]]


def common(*rows: Mapping[str, Any]) -> list[str]:
    """The names that all have, in the order of the first."""
    return [name for name in rows[0] if all(name in row for row in rows[1:])]


def norm(entry: Row) -> float:
    """The norm of a tensor, NaN where it has none."""
    return float(entry["norm"])


def is_finite(entry: Row) -> bool:
    """Whether a tensor has neither NaN nor infinity."""
    return all(map(math.isfinite, (entry["norm"], *entry["sketch"])))


def apart(a: Row, b: Row) -> float:
    """About how far two tensors are apart; infinitely, if one is not finite."""
    found = math.dist(a["sketch"], b["sketch"])
    return found if math.isfinite(found) else math.inf


def ratio(gap: float, size: float) -> float:
    """A gap as a share of ``size``; infinite where nothing has a size but the gap."""
    if size > 0:
        return gap / size
    return math.inf if gap else 0.0


def joined(parts: Sketches, names: Iterable[str]) -> Tensor:
    """The sketches of ``names`` as one vector."""
    values = [float(value) for name in names for value in parts[name]]
    return torch.tensor(values, dtype=torch.float64)


def vector(row: Row, kind: str, names: Iterable[str]) -> Tensor:
    """The same of a row's ``gradients`` or ``parameters``, or of its ``own``."""
    if kind == "own":
        return joined(row[kind], names)
    return joined({name: row[kind][name]["sketch"] for name in names}, names)


def combination(target: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float]:
    """Factors that bring the sum of ``parts`` nearest to ``target``, and what is left.

    Least squares in float64 (``torch.linalg.lstsq``) over flat tensors of one length;
    what is left is |rest| / |target|.
    """
    matrix = torch.stack([part.double() for part in parts], dim=1)
    wanted = target.double()
    factors = torch.linalg.lstsq(matrix, wanted[:, None]).solution.flatten()
    rest = (matrix @ factors - wanted).norm() / wanted.norm().clamp_min(1e-300)
    return factors.tolist(), float(rest)


def fit(target: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float] | None:
    """``combination``, where there are numbers enough to tell: not half as many factors
    as numbers, all of them finite, and no part that others make up.
    """
    if not parts or len(target) < 2 * len(parts):
        return None
    matrix = torch.stack([target, *parts], dim=1)
    sizes = matrix.norm(dim=0)
    if not (torch.isfinite(sizes).all() and (sizes > 0).all()):
        return None
    if len(parts) > 1 and torch.linalg.cond(matrix[:, 1:] / sizes[1:]) > 1e4:
        return None
    return combination(target, parts)


def samples(rows: Rows, kind: str = "inputs") -> Counter[str]:
    """The digests of all samples that these ranks read for one step."""
    batches = (batch for row in rows.values() for batch in row.get(kind, ()))
    return Counter(digest for batch in batches for digest in batch)


def same_samples(a: Rows, b: Rows) -> bool:
    """Whether two sets of rows read the same samples, padding aside."""
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
