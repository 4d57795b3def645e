"""Rungs in words: what came of each, for terminal and report. Imports no torch."""

from collections.abc import Mapping
from typing import Any

# of buffers: what a detail says, and the report looks for
CHANGES = "each rank's forward pass changes"


def verdict_in_words(rung: Mapping[str, Any]) -> str:
    """The verdict; a rung that compares no bits is passed, not equal."""
    if rung["verdict"] == "equal" and not rung.get("bytes_equal"):
        return "passed"
    return str(rung["verdict"])


def printed(ladder: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each rung, for a terminal: its name, what came of it, how far apart
    the two are where that is within tolerance, and its detail.
    """
    width = max(map(len, ladder))
    lines = []
    for name, rung in ladder.items():
        said, apart = verdict_in_words(rung), rung.get("max_abs_diff")
        near = said == "within tolerance" and apart is not None
        details = [f"{apart:.1e} apart" if near else "", rung.get("detail", "")]
        detail = "; ".join(filter(None, details))
        lines.append(f"{name:<{width}}  {said:<16}  {detail}".rstrip())
    return lines
