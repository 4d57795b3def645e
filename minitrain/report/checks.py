"""The checks of metrics/equivalence.json: their questions and outcomes."""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

TEMPLATES = Path(__file__).parent / "templates"
# descriptions of the checks by name, grouped by the question that they answer
QUESTIONS: dict[str, dict[str, str]] = json.loads(
    (TEMPLATES / "checks.json").read_text(encoding="utf-8")
)
RUNGS = {name: words for group in QUESTIONS.values() for name, words in group.items()}


class Mark(StrEnum):
    """Symbol of an outcome, so that it can be read without color."""

    EQUAL = "="
    PASSED = "✓"
    NEAR = "≈"
    UNDECIDED = "?"
    BREACH = "✗"
    NOT_RUN = "-"


MARKS = {
    "equal": Mark.EQUAL,
    "passed": Mark.PASSED,
    "proven": Mark.PASSED,
    "within tolerance": Mark.NEAR,
    "proven in eval mode": Mark.NEAR,
    "replay only": Mark.NEAR,
    "undecided": Mark.UNDECIDED,
    "breach": Mark.BREACH,
    "not run": Mark.NOT_RUN,
}
BYTE_CHECKS = ("ranks", "replay", "replay_gradients", "replay_parameters")


class Outcome(NamedTuple):
    """Outcome of one check; ``figures`` is its entry in equivalence.json."""

    mark: Mark
    verdict: str
    figures: Mapping[str, Any]

    def __str__(self) -> str:
        words = self.verdict
        if self.mark is Mark.NEAR:
            apart = self.figures["max_abs_diff"]
            words = "within" if apart is None else f"{apart:.1e}"
        return f"{self.mark} {words}"


NOT_RUN = Outcome(Mark.NOT_RUN, "not run", {})


def outcomes_of(entry: Mapping[str, Any]) -> dict[str, Outcome]:
    """Return the outcomes in one run's entry of equivalence.json, by check. Raises
    KeyError for an unknown verdict.
    """
    return {
        name: Outcome(MARKS[check["verdict"]], check["verdict"], check)
        for name, check in entry.items()
        if isinstance(check, Mapping)
    }


def in_words(name: str) -> str:
    """Return the name of a check with a description, if known, of what it compares."""
    return f"{name}: {RUNGS[name]}" if name in RUNGS else name


def byte_equivalent(entry: Mapping[str, Any]) -> bool | None:
    """Return whether a run's ranks and replay are bit-identical in every check; None if
    none differs but a check is missing or was not run.
    """
    looked_at = [entry.get(name, {}) for name in BYTE_CHECKS]
    # equal bytes are still a breach if they contain NaN
    if "breach" in [check.get("verdict") for check in looked_at]:
        return False
    equal = [check.get("bytes_equal") for check in looked_at]
    if False in equal:
        return False
    return None if None in equal else True
