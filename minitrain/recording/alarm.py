"""Findings of the rules, each an alarm or a note in one line, and values by rank."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
# the same (optimizer, step) of all ranks, in rank order
Rows = Sequence[Row]
# at most so many ranks are named
NAMED = 8
SYMPTOM = "docs/symptoms/{}.md"
# the page that explains all rules
RULES_PAGE = "docs/reference/recordings.md"
# the page on the symptom of a rule, if there is one; of its alarms, as most notes have
# no page
PAGES = {
    "buffers": SYMPTOM.format("loss-differs"),
    "gradients": SYMPTOM.format("loss-differs"),
    "inputs": SYMPTOM.format("loss-differs"),
    "learning rates": SYMPTOM.format("loss-differs"),
    "mean": SYMPTOM.format("loss-differs"),
    # an alarm only if sharded gradients are never reduced
    "no gradient": SYMPTOM.format("fsdp-against-ddp"),
    "not finite": SYMPTOM.format("nan"),
    "parameters": SYMPTOM.format("loss-differs"),
    "ranks": SYMPTOM.format("hang-in-all-reduce"),
    "stall": SYMPTOM.format("hang-in-all-reduce"),
    "zero_grad": SYMPTOM.format("accumulation"),
}
# rules whose notes are never intended
TROUBLE = {"not finite", "stall"}


@dataclass(frozen=True)
class Alarm:
    """A finding, with its probable ``cause``.

    ``ranks`` differ from the others; empty if it concerns all. A note (``severe``
    False) reports what may be intended. ``tensors`` are all that have the fault, of
    rules whose fault may spread to more tensors later.
    """

    rule: str
    step: int
    what: str
    cause: str = ""
    ranks: Sequence[int] = ()
    tensor: str = ""
    severe: bool = True
    tensors: Sequence[str] = ()

    @property
    def line(self) -> str:
        """Return the line to be printed: the place, what is wrong, and the cause."""
        note = "" if self.severe else "note: "
        tensor = f", tensor {self.tensor}" if self.tensor else ""
        ranks = f", {in_ranks(self.ranks)}" if self.ranks else ""
        where = f"minitrain: {note}step {self.step}: {self.rule}{tensor}{ranks}"
        cause = f"; probable cause: {self.cause}" if self.cause else ""
        return f"{where}: {self.what}{cause}"

    def row(self) -> dict[str, Any]:
        """Return the line of a recording."""
        return {
            "kind": "alarm" if self.severe else "note",
            "rule": self.rule,
            "step": self.step,
            "ranks": [*self.ranks],
            "tensor": self.tensor,
            "line": self.line,
        }


def alarm(rows: Rows, rule: str, what: str, cause: str, **rest: Any) -> Alarm:
    """Return an alarm at the step of ``rows``."""
    return Alarm(rule, rows[0]["step"], what, cause, **rest)


def note(rows: Rows, rule: str, what: str, cause: str, **rest: Any) -> Alarm:
    """Return a note at the step of ``rows``."""
    return alarm(rows, rule, what, cause, severe=False, **rest)


def page_on(row: Row) -> str:
    """Return the page of docs/ on a finding, which is a line of a recording; an empty
    text for a note on what may be intended.
    """
    if row["kind"] == "note" and row["rule"] not in TROUBLE:
        return ""
    return PAGES.get(row["rule"], RULES_PAGE)


def in_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1`` or ``ranks 0, 1``, and the first of many."""
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    first = ", ".join(map(str, ranks[:NAMED]))
    return f"rank{'s' * (len(ranks) > 1)} {first}{more}"


def lacks(ranks: Sequence[int], folder: object) -> str:
    """Return a line: files of ``ranks`` are not in ``folder``, and how to copy them."""
    files = f"rank-{ranks[0]}.jsonl and times-{ranks[0]}.csv"
    files += f", and the files of {in_ranks(ranks[1:])}" if ranks[1:] else ""
    return f"lacks {in_ranks(ranks)}: copy {files} from another host into {folder}"


def unless_all(ranks: Sequence[int], rows: Rows) -> Sequence[int]:
    """Return the ranks to be named: none if all are concerned."""
    return ranks if len(ranks) < len(rows) else ()


def unlike(values: Sequence[Hashable]) -> list[int]:
    """Return the ranks that have another value than most; of two equally frequent
    values, the ranks that differ from the first.
    """
    # max and Counter keep the order of the ranks
    counts = Counter(values)
    usual = max(counts, key=lambda value: counts[value])
    return [rank for rank, value in enumerate(values) if value != usual]


def against(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Return the value of the first of ``ranks``, and the value of another rank."""
    others = (value for rank, value in enumerate(values) if rank not in ranks)
    return f"{values[ranks[0]]}, but elsewhere {next(others)}"


def first_unlike(tables: Sequence[Mapping[str, Hashable]]) -> tuple[str, list[int]]:
    """Return the first name whose value differs between ``tables``, and the ranks that
    :func:`unlike` returns for it; an empty name if there is none.
    """
    for name in all_names(tables):
        if ranks := unlike([table.get(name) for table in tables]):
            return name, ranks
    return "", []


def all_names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names in any of ``tables``, in their order."""
    return [*dict.fromkeys(name for table in tables for name in table)]


def hashes(row: Row, what: str) -> dict[str, str]:
    """Return hashes by name of ``gradients``, ``parameters`` or ``buffers``."""
    return {name: print_["hash"] for name, print_ in row.get(what, {}).items()}
