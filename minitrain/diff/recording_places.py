"""The rows of one step of two recordings, side by side, and arithmetic on sketches.

A sketch is linear in its tensor, and as long as it on average. So the distance of two
sketches estimates that of two tensors, and what is a sum of tensors is the same sum of
their sketches.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minitrain.diff.diagnosis import combination

Row = Mapping[str, Any]
Rows = Mapping[int, Row]
Sketches = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Place:
    """One step of one optimizer in A and in B: a row for each rank. ``twin`` is that of
    the first rank of A's twin.
    """

    optimizer: int
    step: int
    a: Rows
    b: Rows
    world_sizes: tuple[int, int]
    twin: Row | None = None

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
    values = [_number(value) for name in names for value in parts[name]]
    return torch.tensor(values, dtype=torch.float64)


def _number(value: float | None) -> float:
    # JSON has no NaN
    return math.nan if value is None else float(value)


def norm(entry: Row) -> float:
    """The norm of a tensor, NaN where it has none."""
    return _number(entry["norm"])


def apart(a: Sequence[float], b: Sequence[float]) -> float:
    """About how far two tensors are apart; infinitely, if one is not finite."""
    pairs = zip(a, b, strict=True)
    found = math.sqrt(sum((_number(x) - _number(y)) ** 2 for x, y in pairs))
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
    if not (torch.isfinite(matrix).all() and (sizes > 0).all()):
        return None
    if len(parts) > 1 and torch.linalg.cond(matrix[:, 1:] / sizes[1:]) > 1e4:
        return None
    return combination(target, parts)


def common(*rows: Mapping[str, Any]) -> list[str]:
    """The names that all have, in the order of the first."""
    return [name for name in rows[0] if all(name in row for row in rows[1:])]


def samples(rows: Rows) -> Counter[str]:
    """The digests of all samples that these ranks read for one step."""
    return Counter(digest for row in rows.values() for digest in _digests(row))


def _digests(row: Row) -> Iterator[str]:
    for batch in row["inputs"]:
        yield from batch


def in_ranks(ranks: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 0, 1``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
