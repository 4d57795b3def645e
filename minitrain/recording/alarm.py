"""What a rule says: an alarm, or a note, in one line."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
# the same (optimizer, step) of all ranks, in rank order
Rows = Sequence[Row]
# ranks that are named
NAMED = 8


@dataclass(frozen=True)
class Alarm:
    """``ranks`` are those that are unlike the others; empty where it concerns all.

    A note (``severe`` False) says what is true and may be meant.
    """

    rule: str
    step: int
    ranks: list[int]
    tensor: str
    line: str
    severe: bool = True
    # all that it is about, where those may become more
    tensors: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """As a recording has it."""
        return "alarm" if self.severe else "note"

    def row(self) -> dict[str, Any]:
        """As a line of a recording."""
        fields = ("rule", "step", "ranks", "tensor", "line")
        return {"kind": self.kind, **{name: getattr(self, name) for name in fields}}


def alarm(
    rule: str,
    step: int,
    what: str,
    *,
    ranks: Sequence[int] = (),
    tensor: str = "",
    cause: str = "",
    severe: bool = True,
    tensors: Sequence[str] = (),
) -> Alarm:
    """An alarm with its line: where, ``what`` is so, and the probable cause."""
    where = f"minitrain: {'' if severe else 'note: '}step {step}: {rule}"
    if tensor:
        where += f", tensor {tensor}"
    if ranks:
        where += f", {in_ranks(ranks)}"
    why = f"; probable cause: {cause}" if cause else ""
    line = f"{where}: {what}{why}"
    return Alarm(rule, step, [*ranks], tensor, line, severe, tuple(tensors))


def in_ranks(ranks: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 0, 1``; the first of many."""
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    first = ", ".join(map(str, ranks[:NAMED]))
    return f"rank{'s' * (len(ranks) > 1)} {first}{more}"


def unlike(values: Sequence[Hashable]) -> list[int]:
    """Which have another value than most have; where as many have one as another, than
    the first of them.
    """
    if len({*values}) < 2:
        return []
    counts = Counter(values)
    # max and Counter keep the order of the ranks
    usual = max(counts, key=lambda value: counts[value])
    return [rank for rank, value in enumerate(values) if value != usual]


def first_unlike(tables: Sequence[Mapping[str, Hashable]]) -> tuple[str, list[int]]:
    """The first name whose value is not the same in all ``tables``, and where it is not
    what most have; an empty name where there is none.
    """
    for name in all_names(tables):
        if ranks := unlike([table.get(name) for table in tables]):
            return name, ranks
    return "", []


def all_names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names in any of ``tables``, in their order."""
    return [*dict.fromkeys(name for table in tables for name in table)]


def hashes(row: Row, what: str) -> dict[str, str]:
    """By name, of ``gradients``, ``parameters`` or ``buffers``."""
    return {name: print_["hash"] for name, print_ in row.get(what, {}).items()}
