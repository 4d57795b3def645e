"""The first difference between two runs, in what both recorded of their tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

What = Literal["gradients", "parameters", "buffers"]
# what is wrong in a step makes all that follows in it wrong
IN_ORDER: tuple[What, ...] = ("gradients", "parameters", "buffers")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """The first tensor that differs, and the ranks on which it does."""

    step: int
    what: What
    tensor: str
    ranks: list[int]


def of_kind(rows: Rows, kind: str) -> list[Mapping[str, Any]]:
    """The rows of a ``kind``."""
    return [row for row in rows if row["kind"] == kind]


def first_difference(
    run: Rows, other: Rows, whats: Sequence[What] = IN_ORDER
) -> Difference | None:
    """Find the first hash of ``run`` that is not that of ``other``, or is missing in
    one: by step, then in the order of ``whats``, of ranks and of names in the
    recording.
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
