"""Print the result in five lines: bits, speed, time, loss, and the path of the report.

Reads metrics/ of the project in the current folder, and measures nothing. Exit code 0:
printed, 1: a check breached, which is printed instead, 2: a file is missing or cannot
be read.
"""

import argparse
from pathlib import Path

from minitrain.cli.answer import Answer
from minitrain.core.printable import as_lines

EXAMPLES = {
    "what make ends in": "minitrain summary",
    "of a folder of another name": "minitrain summary --metrics results",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the results are."""
    results = "the results (metrics)"
    parser.add_argument("--metrics", type=Path, default=Path("metrics"), help=results)


def answer(options: argparse.Namespace) -> Answer:
    """The lines, as they are published."""
    # tables take a moment to import: not for --help
    from minitrain.report.terminal import summary_lines

    ok, lines = summary_lines(options.metrics)
    return Answer(ok, {"ok": ok, "lines": lines}, as_lines(lines))
