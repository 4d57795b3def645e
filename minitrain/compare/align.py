"""The rows of one step of two recordings, side by side, and arithmetic on sketches.

A sketch is linear in its tensor, and as long as it on average. So the distance of two
sketches estimates that of two tensors, and what is a sum of tensors is the same sum of
their sketches.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minitrain.compare.diagnosis import combination
from minitrain.proof.tolerances import GRADIENT_SHARE, GRADIENT_SHARE_FLOAT64
from minitrain.recording.alarm import in_ranks
from minitrain.recording.format import Recording

Row = Mapping[str, Any]
Rows = Mapping[int, Row]
Sketches = Mapping[str, Sequence[float]]
Key = tuple[int, int]

DOUBLE = {"float64", "complex128"}
# what rounding alone makes of one operation, in float32 and in float64
UNIT, UNIT_FLOAT64 = 2.0**-24, 2.0**-53


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
        """Which rank of A is held to which of B. Where the world sizes differ, the
        first of either to all of the other: they should have the same.
        """
        return pairs_of(self.a, self.b, self.same_size)

    @property
    def complete(self) -> bool:
        """Whether no rank is missing."""
        return (len(self.a), len(self.b)) == self.world_sizes

    @property
    def draws(self) -> bool:
        """Whether a forward pass drew random numbers."""
        return any(row["draws"] for row in (*self.a.values(), *self.b.values()))

    @property
    def gradient_share(self) -> float:
        """Of the largest gradient: how far rounding may take another one."""
        return GRADIENT_SHARE_FLOAT64 if self.double else GRADIENT_SHARE

    @property
    def unit(self) -> float:
        """What rounding alone makes of one operation."""
        return UNIT_FLOAT64 if self.double else UNIT


def places_of(a: Recording, b: Recording, twin: Recording | None) -> list[Place]:
    """The steps that ranks which are held to each other both recorded, in the order of
    the run.
    """
    sizes = a.world_size, b.world_size
    double = all(is_double(one) for one in (a, b))
    places = []
    both = _keys(b).keys()
    for key in (key for key in _keys(a) if key in both):
        rows = _rows(a, key), _rows(b, key)
        of_twin = twin and twin.ranks[min(twin.ranks)].steps.get(key)
        usable = of_twin if of_twin and finite_as(of_twin, rows[0]) else None
        place = Place(*key, *rows, sizes, usable, double)
        places += [place] if place.pairs else []
    return places


def is_double(recording: Recording) -> bool:
    """Whether all parameters are float64: then so is what is computed."""
    about = next(iter(recording.ranks.values())).header["parameters"]
    return {one["dtype"] for one in about.values()} <= DOUBLE


def _keys(recording: Recording) -> dict[Key, None]:
    """A step that a rank lacks stands behind those that the first one has."""
    return dict.fromkeys(key for one in recording.ranks.values() for key in one.steps)


def _rows(recording: Recording, key: Key) -> dict[int, Row]:
    return {
        rank: one.steps[key]
        for rank, one in sorted(recording.ranks.items())
        if key in one.steps
    }


def finite_as(twin: Row, a: Rows) -> bool:
    """Whether a twin is finite wherever A is: one that is not shows nothing."""
    first = a[min(a)]
    return all(
        is_finite(twin[kind][name]) or not is_finite(first[kind][name])
        for kind in ("gradients", "parameters")
        for name in common(twin[kind], first[kind])
    )


def is_finite(entry: Row) -> bool:
    """Whether a tensor has neither NaN nor infinity."""
    return all(map(math.isfinite, (entry["norm"], *entry["sketch"])))


def pairs_of(a: Rows, b: Rows, same_size: bool) -> list[tuple[int, int]]:
    """The ranks of A and B that are compared."""
    if same_size:
        return [(rank, rank) for rank in sorted(a.keys() & b.keys())]
    first_a, first_b = min(a), min(b)
    pairs = [(first_a, rank) for rank in sorted(b)]
    return pairs + [(rank, first_b) for rank in sorted(a) if rank != first_a]


def sketches(row: Row, kind: str) -> dict[str, list[float]]:
    """The sketches of a row's ``gradients`` or ``parameters``, or its ``own``."""
    entries = row[kind]
    if kind == "own":
        return dict(entries)
    return {name: entry["sketch"] for name, entry in entries.items()}


def joined(parts: Sketches, names: Sequence[str]) -> Tensor:
    """The sketches of ``names`` as one vector."""
    values = [float(value) for name in names for value in parts[name]]
    return torch.tensor(values, dtype=torch.float64)


def norm(entry: Row) -> float:
    """The norm of a tensor, NaN where it has none."""
    return float(entry["norm"])


def apart(a: Sequence[float], b: Sequence[float]) -> float:
    """About how far two tensors are apart; infinitely, if one is not finite."""
    found = math.dist(a, b)
    return found if math.isfinite(found) else math.inf


def length(values: Tensor) -> float:
    """The norm of joined sketches."""
    return float(values.norm())


def fit(target: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float] | None:
    """``combination``, where there are numbers enough to tell: not half as many factors
    as numbers, all of them finite, and no part that others make up.
    """
    parts = [*parts]
    if not parts or len(target) < 2 * len(parts):
        return None
    matrix = torch.stack([target, *parts], dim=1)
    sizes = matrix.norm(dim=0)
    if not (torch.isfinite(sizes).all() and (sizes > 0).all()):
        return None
    if len(parts) > 1 and torch.linalg.cond(matrix[:, 1:] / sizes[1:]) > 1e4:
        return None
    return combination(target, parts)


def common(*rows: Mapping[str, Any]) -> list[str]:
    """The names that all have, in the order of the first."""
    return [name for name in rows[0] if all(name in row for row in rows[1:])]


def samples(rows: Rows, kind: str = "inputs") -> Counter[str]:
    """The digests of all samples that these ranks read for one step."""
    batches = (batch for row in rows.values() for batch in row.get(kind, ()))
    return Counter(digest for batch in batches for digest in batch)


def same_samples(a: Rows, b: Rows) -> bool:
    """Whether two sets of rows read the same samples, padding aside."""
    ours, theirs = samples(a), samples(b)
    if ours == theirs:
        return True
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


def beside(rows: Rows) -> set[str]:
    """The digests of what stood beside the samples, however many ranks got it."""
    return {digest for row in rows.values() for digest in row["beside"] if digest}


def of_pairs(place: Place, pairs: Sequence[tuple[int, int]]) -> str:
    """The ranks of these pairs; an empty text for all pairs."""
    if len(pairs) == len(place.pairs):
        return ""
    if place.same_size:
        return in_ranks([rank for rank, _ in pairs])
    first = min(place.a)
    of_b = [y for x, y in pairs if x == first]
    if of_b:
        return f"{in_ranks(of_b)} of B"
    return f"{in_ranks([x for x, _ in pairs])} of A"
