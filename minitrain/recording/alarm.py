"""Findings of the rules, alarms (faults) and notes, and comparison of ranks' values."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
# one row per rank, in rank order, of one step (or all headers, or all ends)
Rows = Sequence[Row]
# at most so many ranks are named
NAMED = 8
SYMPTOM = "docs/symptoms/{}.md"
# the page that explains all rules, for those without a page
RULES_PAGE = "docs/reference/recordings.md"
# the page on the symptom that an alarm of a rule explains; most notes have no page
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
    """A finding of ``rule`` at ``step``: ``what`` is wrong, and the probable ``cause``.

    ``ranks``: those that differ from the rest; empty if all are affected. ``tensor``:
    one that is affected, or "". ``severe``: False for a note, which may be intended.
    """

    rule: str
    step: int
    what: str
    cause: str = ""
    ranks: Sequence[int] = ()
    tensor: str = ""
    severe: bool = True

    @property
    def line(self) -> str:
        """Return the line to print: the place, what is wrong, and the cause."""
        note = "" if self.severe else "note: "
        tensor = f", tensor {self.tensor}" if self.tensor else ""
        ranks = f", {in_ranks(self.ranks)}" if self.ranks else ""
        where = f"minitrain: {note}step {self.step}: {self.rule}{tensor}{ranks}"
        cause = f"; probable cause: {self.cause}" if self.cause else ""
        return f"{where}: {self.what}{cause}"

    def row(self) -> dict[str, Any]:
        """Return the finding as a row of a recording, of kind "alarm" or "note"."""
        return {
            "kind": "alarm" if self.severe else "note",
            "rule": self.rule,
            "step": self.step,
            "ranks": [*self.ranks],
            "tensor": self.tensor,
            "line": self.line,
        }


def alarm(rows: Rows, rule: str, what: str, cause: str, **rest: Any) -> Alarm:
    """Return an :class:`Alarm` for the step of ``rows``; ``rest``: its other fields."""
    return Alarm(rule, rows[0]["step"], what, cause, **rest)


def note(rows: Rows, rule: str, what: str, cause: str, **rest: Any) -> Alarm:
    """Return a non-severe :class:`Alarm` for the step of ``rows``."""
    return alarm(rows, rule, what, cause, severe=False, **rest)


def page_on(row: Row) -> str:
    """Return the page of docs/ on a finding, given as a row; "" for most notes."""
    if row["kind"] == "note" and row["rule"] not in TROUBLE:
        return ""
    return PAGES.get(row["rule"], RULES_PAGE)


def in_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1`` or ``ranks 0, 1``; of many, only the first :data:`NAMED`."""
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    first = ", ".join(map(str, ranks[:NAMED]))
    return f"rank{'s' * (len(ranks) > 1)} {first}{more}"


def lacks(ranks: Sequence[int], folder: object) -> str:
    """Return a message: files of ``ranks`` are missing in ``folder``, so copy them."""
    files = f"rank-{ranks[0]}.jsonl and times-{ranks[0]}.csv"
    files += f", and the files of {in_ranks(ranks[1:])}" if ranks[1:] else ""
    return f"lacks {in_ranks(ranks)}: copy {files} from another host into {folder}"


def unless_all(ranks: Sequence[int], rows: Rows) -> Sequence[int]:
    """Return ``ranks``, or an empty tuple if these are all ranks of ``rows``."""
    return ranks if len(ranks) < len(rows) else ()


def unlike(values: Sequence[Hashable]) -> list[int]:
    """Return the ranks whose value is not the most frequent one (in a tie, the one that
    comes first); empty if all are equal. ``values``: one per rank, at least one.
    """
    if values.count(values[0]) == len(values):
        return []
    # max and Counter keep the order of the ranks
    counts = Counter(values)
    usual = max(counts, key=lambda value: counts[value])
    return [rank for rank, value in enumerate(values) if value != usual]


def against(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Return a text: the value of ``ranks[0]``, and of a rank not in ``ranks``."""
    others = (value for rank, value in enumerate(values) if rank not in ranks)
    return f"{values[ranks[0]]}, but elsewhere {next(others)}"


def first_unlike(tables: Sequence[Mapping[str, Hashable]]) -> tuple[str, list[int]]:
    """Return the first name with :func:`unlike` values, and their ranks; "" if none."""
    for name in all_names(tables):
        if ranks := unlike([table.get(name) for table in tables]):
            return name, ranks
    return "", []


def all_names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names in any of ``tables``, each once, in order of appearance."""
    return [*dict.fromkeys(name for table in tables for name in table)]


def position_of(row: Row) -> str:
    """Return where in the run a row was made, as text: "step 3", or "the end"."""
    if row["kind"] != "step":
        return {"recording": "the start", "end": "the end"}.get(row["kind"], "?")
    optimizer = row.get("optimizer", 0)
    return f"step {row['step']}" + (f" of optimizer {optimizer}" if optimizer else "")


def hashes(row: Row, what: str) -> dict[str, str]:
    """Return a row's hashes of ``what`` ("gradients", "parameters" ...), by name."""
    return {name: print_["hash"] for name, print_ in row.get(what, {}).items()}
