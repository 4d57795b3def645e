"""The checks of metrics/equivalence.json: what each compares, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from minitrain.core.errors import UserError
from minitrain.proof.words import verdict_in_words


class Mark(StrEnum):
    """The sign of an outcome, for readers who cannot see its color."""

    EQUAL = "="
    PASSED = "✓"
    NEAR = "≈"
    UNDECIDED = "?"
    BREACH = "✗"
    NOT_RUN = "-"


# of one check
MARKS = {
    "equal": Mark.EQUAL,
    "passed": Mark.PASSED,
    "within tolerance": Mark.NEAR,
    "undecided": Mark.UNDECIDED,
    "breach": Mark.BREACH,
    "not run": Mark.NOT_RUN,
}
# of a run
VERDICT_MARKS = {
    "proven": Mark.PASSED,
    "proven in eval mode": Mark.NEAR,
    "replay only": Mark.NEAR,
    "undecided": Mark.UNDECIDED,
    "breach": Mark.BREACH,
}
# checks whose bits decide whether N processes computed what one process computes
BYTE_CHECKS = ("ranks", "replay", "replay_gradients", "replay_parameters")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check: ``distance`` where it is within tolerance."""

    mark: Mark
    verdict: str
    distance: float | None = None

    def __str__(self) -> str:
        words = self.verdict
        if self.mark is Mark.NEAR:
            words = "within" if self.distance is None else f"{self.distance:.1e}"
        return f"{self.mark} {words}"


def outcome_of(check: Mapping[str, Any] | None) -> Outcome:
    """Return the outcome of a check; None is one that was not run."""
    verdict = "not run" if check is None else verdict_in_words(check)
    return Outcome(MARKS[verdict], verdict, (check or {}).get("max_abs_diff"))


def checks_of(entry: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the checks of one run's entry in metrics/equivalence.json."""
    return {
        name: check
        for name, check in entry.items()
        if isinstance(check, Mapping) and "verdict" in check
    }


def require_known_verdicts(entries: Mapping[str, Any], source: str) -> None:
    """Raise UserError for a verdict that is no such word."""
    for run, entry in entries.items():
        words = {run: (entry.get("verdict", "undecided"), VERDICT_MARKS)}
        for name, check in checks_of(entry).items():
            words[f"{run}, {name}"] = check["verdict"], MARKS
        for where, (word, known) in words.items():
            if word not in known:
                allowed = ", ".join(known)
                raise UserError(
                    f"{source}: {where}: verdict {word!r}, must be one of {allowed}"
                )


def byte_equivalent(entry: Mapping[str, Any]) -> bool | None:
    """Return whether ranks and replay agree to the last bit in every check.

    None (unknown) if none differs but a check is missing or was not run.
    """
    looked_at = [entry.get(name, {}) for name in BYTE_CHECKS]
    # equal bytes can be a breach too: NaN is equal to nothing
    if "breach" in [check.get("verdict") for check in looked_at]:
        return False
    equal = [check.get("bytes_equal") for check in looked_at]
    if False in equal:
        return False
    return None if None in equal else True
