"""Result of one check of a run, a rung: verdict, reason, distances, and a text."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CheckVerdict(StrEnum):
    """Outcome of one check, under the same name in every file, page and terminal."""

    EQUAL = "equal"  # to the last bit
    PASSED = "passed"  # compares no bits
    WITHIN = "within tolerance"
    NOT_RUN = "not run"
    UNDECIDED = "undecided"
    BREACH = "breach"


FINE = (CheckVerdict.EQUAL, CheckVerdict.PASSED, CheckVerdict.WITHIN)


class Reason(StrEnum):
    """Reason for not running a check, by which a verdict on the run is decided."""

    SINGLE_RANK = "single rank"
    ONE_MEMORY = "one memory"
    IS_REFERENCE = "is reference"


IN_WORDS = {
    Reason.SINGLE_RANK: "single rank: nothing to compare",
    Reason.ONE_MEMORY: "the ranks share one memory: nothing to compare",
    Reason.IS_REFERENCE: "this run is the one process",
}


@dataclass(frozen=True)
class Rung:
    """Result of one check of a run. All rungs of a run, by name, are its ladder.
    ``detail`` is the first difference, or why the check was not run, in words; no code
    depends on it. ``bytes_equal``, ``max_ulp`` (units in the last place) and
    ``max_abs_diff`` are None if not computed.
    """

    bytes_equal: bool | None
    max_ulp: int | None
    max_abs_diff: float | None
    verdict: CheckVerdict
    detail: str
    reason: Reason | None = None

    @property
    def is_unexplained(self) -> bool:
        """True for a comparison that found a distance, but neither holds nor fails."""
        return self.verdict == CheckVerdict.NOT_RUN and self.max_abs_diff is not None


def rung_of(entry: Mapping[str, Any]) -> Rung:
    """Convert a JSON object to a rung. Raises ValueError for an unknown verdict or
    reason, and KeyError without one (null if there is none).
    """
    reason = entry["reason"] and Reason(entry["reason"])
    verdict = CheckVerdict(entry["verdict"])
    return Rung(**{**entry, "verdict": verdict, "reason": reason})


def without_bits(verdict: CheckVerdict, detail: str) -> Rung:
    """Return the rung of a check that compares no bits and measures no distance."""
    return Rung(None, None, None, verdict, detail)


def not_run(why: Reason | str) -> Rung:
    """Return the rung of a check that does not apply; ``why`` is the reason."""
    if not isinstance(why, Reason):
        return without_bits(CheckVerdict.NOT_RUN, why)
    return Rung(None, None, None, CheckVerdict.NOT_RUN, IN_WORDS[why], why)
