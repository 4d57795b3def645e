"""Rungs in words, for terminal and report. Imports no torch."""

from collections.abc import Mapping
from typing import Any


def verdict_in_words(rung: Mapping[str, Any]) -> str:
    """The verdict; a rung that compares no bits is passed, not equal."""
    if rung["verdict"] == "equal" and not rung.get("bytes_equal"):
        return "passed"
    return str(rung["verdict"])


def printed(ladder: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each rung: its name, its verdict, how far apart the two are
    where that is within tolerance, and its detail.
    """
    width = max(map(len, ladder))
    lines = []
    for name, rung in ladder.items():
        verdict, apart = verdict_in_words(rung), rung.get("max_abs_diff")
        detail = rung.get("detail", "")
        if verdict == "within tolerance" and apart is not None:
            detail = "; ".join(filter(None, (f"{apart:.1e} apart", detail)))
        lines.append(f"{name:<{width}}  {verdict:<16}  {detail}".rstrip())
    return lines
