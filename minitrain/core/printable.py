"""Escaping of untrusted text for a terminal.

Control characters, bidirectional overrides and zero-width characters can move the
cursor and hide or reorder text: they are printed as ``\\x1b``, ``\\u202e``.
Strings in JSON output are already escaped.
"""

import sys
from collections.abc import Iterable

# characters; the middle of a longer line is omitted
LONGEST_LINE = 2000


def printable(line: str) -> str:
    """Return ``line`` escaped for a terminal, shortened to :data:`LONGEST_LINE`."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii")
        for one in shortened(line, LONGEST_LINE)
    )


def as_lines(lines: Iterable[str]) -> str:
    """Return ``lines``, escaped and joined; line breaks within a line are escaped."""
    return "\n".join(map(printable, lines))


def print_note(line: str) -> None:
    """Print one escaped line on stderr and flush."""
    print(printable(line), file=sys.stderr, flush=True)


def shortened(text: str, longest: int) -> str:
    """Return ``text``, with its middle replaced by "..." if longer than ``longest``."""
    if len(text) <= longest:
        return text
    left = (longest - len("...")) // 2
    return f"{text[:left]}...{text[-left:]}"
