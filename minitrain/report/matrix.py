"""The ladder as a small matrix: what was compared, in which run, and what came of it.

Each outcome has a mark and a word beside its color, for whoever sees no colors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minitrain.proof.words import verdict_in_words
from minitrain.report.glossary import RUNGS
from minitrain.report.ladder import NOT_RUN, rungs
from minitrain.report.render import Markdown, table
from minitrain.report.results import Results

LEGEND = (
    "= equal to the last bit",
    "✓ passed (no bits compared)",
    "≈ within tolerance, how far apart",
    "? undecided",
    "✗ breach",
    "- not run",
)
# of a rung: the color, and the mark
OUTCOMES = {
    "equal": ("equal", "="),
    "passed": ("equal", "✓"),
    "within tolerance": ("near", "≈"),
    "undecided": ("undecided", "?"),
    "breach": ("breach", "✗"),
    "not run": ("absent", "-"),
}
# of a run
VERDICTS = {
    "proven": ("equal", "✓"),
    "replay only": ("near", "="),
    "undecided": ("undecided", "?"),
    "breach": ("breach", "✗"),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a comparison; ``kind`` is its color."""

    kind: str
    mark: str
    words: str

    def __str__(self) -> str:
        return f"{self.mark} {self.words}"


@dataclass(frozen=True)
class Row:
    """One comparison, and its outcome in each run."""

    what: str
    outcomes: tuple[Outcome, ...]

    @property
    def muted(self) -> bool:
        """Whether it was made in no run."""
        return all(outcome.kind == "absent" for outcome in self.outcomes)


@dataclass(frozen=True)
class Matrix:
    """``runs`` and the verdict on each, and a row for each comparison."""

    runs: tuple[tuple[str, Outcome], ...]
    rows: tuple[Row, ...]
    legend: tuple[str, ...] = LEGEND

    def as_markdown(self) -> Markdown:
        """The same as a table."""
        head = [f"{run}: {verdict}" for run, verdict in self.runs]
        rows = [[row.what, *map(str, row.outcomes)] for row in self.rows]
        return table(["compared", *head], rows)


def outcome_of(rung: Mapping[str, Any]) -> Outcome:
    """What came of ``rung``; where it is within tolerance, its distance."""
    said = verdict_in_words(rung)
    kind, mark = OUTCOMES[said]
    if said == "within tolerance":
        apart = rung.get("max_abs_diff")
        said = "within" if apart is None else f"{apart:.1e}"
    return Outcome(kind, mark, said)


def matrix(results: Results) -> Matrix:
    """Every comparison of every run."""
    ladders = {run: rungs(ladder) for run, ladder in results.equivalence.items()}
    names = dict.fromkeys(name for ladder in ladders.values() for name in ladder)
    rows = [
        Row(
            RUNGS.get(name, name),
            tuple(outcome_of(ladder.get(name, NOT_RUN)) for ladder in ladders.values()),
        )
        for name in names
    ]
    runs = [(results.label(run), _verdict(results.verdict(run))) for run in ladders]
    return Matrix(tuple(runs), tuple(rows))


def _verdict(verdict: str) -> Outcome:
    return Outcome(*VERDICTS[verdict], verdict)
