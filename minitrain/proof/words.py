"""Results of checks (rungs) as text, for terminal and report. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from minitrain.analysis.verdicts import CheckVerdict


def printed(ladder: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line per check in ``ladder``: name, verdict, distance, detail."""
    width = max(map(len, ladder))
    lines = []
    for name, rung in ladder.items():
        verdict, apart = rung["verdict"], rung.get("max_abs_diff")
        detail = rung.get("detail", "")
        if verdict == CheckVerdict.WITHIN and apart is not None:
            detail = "; ".join(filter(None, (f"{apart:.1e} apart", detail)))
        lines.append(f"{name:<{width}}  {verdict:<16}  {detail}".rstrip())
    return lines
