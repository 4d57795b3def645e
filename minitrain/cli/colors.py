"""Verdicts in color: for people at a terminal, and nobody else."""

import os
import re
from typing import TextIO

COLORS = {
    32: ("equal", "proven", "fine", "within tolerance", "same computation"),
    33: (
        "undecided",
        "proven in eval mode",
        "replay only",
        "unsupported",
        "trouble",
        "not tried",
    ),
    31: ("different", "breach", "wrong"),
}
COLOR_OF = {word: color for color, words in COLORS.items() for word in words}
# a verdict begins its line, or stands in a column of its own
LONGEST_FIRST = "|".join(sorted(COLOR_OF, key=len, reverse=True))
VERDICT = re.compile(rf"(^|  )({LONGEST_FIRST})\b")


def wants_color(stream: TextIO) -> bool:
    """Whether a terminal that knows colors reads it, and nobody set NO_COLOR."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return stream.isatty() and not unwanted


def colored(text: str) -> str:
    """``text`` with the first verdict of each line in its color."""
    return "\n".join(VERDICT.sub(_paint, line, count=1) for line in text.split("\n"))


def _paint(found: re.Match[str]) -> str:
    before, verdict = found.groups()
    return f"{before}\x1b[{COLOR_OF[verdict]}m{verdict}\x1b[0m"
