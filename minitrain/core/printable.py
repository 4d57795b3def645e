"""Text from files, names and other hosts, made safe to print on a terminal.

Control characters, bidirectional overrides and zero-width characters can move the
cursor, hide text or reorder it: they are printed as ``\\x1b``, ``\\u202e``.
JSON output does not need this: its strings are escaped.
"""

import sys
from collections.abc import Iterable

# more of one line is left out in its middle
LONGEST_LINE = 2000


def printable(line: str) -> str:
    """Return one line that a terminal shows as it is, shortened if it is long."""
    return "".join(map(_escaped, shortened(line, LONGEST_LINE)))


def as_lines(lines: Iterable[str]) -> str:
    """Join ``lines``, each printable; a line break within one is escaped."""
    return "\n".join(map(printable, lines))


def note(line: str) -> None:
    """Print one line on stderr, at once."""
    print(printable(line), file=sys.stderr, flush=True)


def shortened(text: str, longest: int) -> str:
    """Return ``text``, without its middle if it is longer than ``longest``."""
    if len(text) <= longest:
        return text
    left = (longest - len("...")) // 2
    return f"{text[:left]}...{text[-left:]}"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
