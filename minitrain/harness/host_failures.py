"""What ended a run on each of its hosts, and which of it explains the rest."""

from collections.abc import Sequence
from typing import Any

from minitrain.core.errors import RankError, UserError

# what a RankError carries beside its line
FACTS = ("what", "step", "of_another")


def order(error: Exception) -> int:
    """What lies lower explains what lies higher: a user's mistake, a rank that failed
    by itself, a rank that waited for one of another host.
    """
    if isinstance(error, UserError):
        return 0
    return 2 if isinstance(error, RankError) and error.of_another else 1


def not_together() -> RankError:
    """Torchrun says no more than that a host did not come, or has gone."""
    error = RankError("not all hosts started their ranks together")
    error.what, error.of_another = str(error), True
    return error


def with_silent(cause: Exception | None, silent: Sequence[str]) -> Exception | None:
    """``cause``, or that hosts are lost where those that were ``silent`` may be the
    cause: without them nothing can start again.
    """
    if not silent or (cause is not None and order(cause) < 2):
        return cause
    here = "" if cause is None else f"; {cause}"
    return UserError(f"no word from {', '.join(silent)}{here}")


def as_plain(error: Exception | None) -> dict[str, Any]:
    """``error``, or that there was none, for another host."""
    if error is None:
        return {}
    plain = {"line": str(error), "mistake": isinstance(error, UserError)}
    return plain | {n: getattr(error, n) for n in FACTS if hasattr(error, n)}


def from_plain(told: dict[str, Any]) -> Exception | None:
    """What :func:`as_plain` told."""
    if not told:
        return None
    if told["mistake"]:
        return UserError(told["line"])
    error = RankError(told["line"])
    for name in FACTS:
        setattr(error, name, told.get(name, getattr(error, name)))
    return error
