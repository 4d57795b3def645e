"""Search for the first difference between the recorded tensors of two runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

What = Literal["gradients", "parameters", "buffers"]
# in the order of a step: an error makes everything after it wrong
IN_ORDER: tuple[What, ...] = ("gradients", "parameters", "buffers")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """The first tensor that differs, and the ranks with the difference."""

    step: int
    what: What
    tensor: str
    ranks: list[int]


def of_kind(rows: Rows, kind: str) -> list[Mapping[str, Any]]:
    """Return the rows of a ``kind``."""
    return [row for row in rows if row["kind"] == kind]


def first_difference(
    run: Rows, other: Rows, whats: Sequence[What] = IN_ORDER
) -> Difference | None:
    """Find the first hash that differs or is present in only one of the runs.

    The order is by step, then by ``whats``, rank, and name as recorded.
    """
    ours, theirs = (
        {(row["step"], row["rank"]): row for row in of_kind(rows, "tensors")}
        for rows in (run, other)
    )
    steps = sorted({step for step, _ in ours})
    for step in steps:
        ranks = sorted(rank for s, rank in ours if s == step)
        for what in whats:
            differ: dict[str, list[int]] = {}
            for rank in ranks:
                mine = ours[step, rank][what]
                wanted = theirs.get((step, rank), {}).get(what, {})
                for name in dict.fromkeys([*mine, *wanted]):
                    if mine.get(name) != wanted.get(name):
                        differ.setdefault(name, []).append(rank)
            for tensor, found in differ.items():
                return Difference(step, what, tensor, found)
    return None
