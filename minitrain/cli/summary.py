"""Print the result in five lines: bits, speed, time, loss, and the path of the report.

Reads metrics/ of the project in the current folder, and measures nothing. Exit code 0:
printed, 1: a check breached, which is printed instead, 2: a file is missing or cannot
be read.
"""

import argparse
from pathlib import Path

from minitrain.cli.answer import Answer

EXAMPLES = {
    "the last lines of make": "minitrain summary",
    "the same lines, for a program": "minitrain summary --json",
}


def answer(options: argparse.Namespace) -> Answer:
    """Return the lines, as they are published."""
    # tables take a moment to import: not for --help
    from minitrain.report.terminal import summary_lines

    ok, lines = summary_lines(Path("metrics"))
    return Answer(ok, {"ok": ok, "lines": lines}, "\n".join(lines))
