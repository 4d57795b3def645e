"""Print the result in five lines: bits, speed, time, loss, and the path of the report.

Reads metrics/ of the project in the current folder, and measures nothing. Exit code 0:
printed, 1: a check breached, which is printed instead, 2: a file is missing or cannot
be read.
"""

import argparse
from pathlib import Path

from minitrain.cli.command import Answer

EXAMPLES = {
    "the last lines of make": "minitrain summary",
    "the same lines, for a program": "minitrain summary --json",
}


def answer(options: argparse.Namespace) -> Answer:
    """Return the published lines; ``ok`` is False after a breach (a failed check)."""
    # tables take a moment to import: not for --help
    from minitrain.core.params import require_root
    from minitrain.report.published import summary_lines

    metrics = Path("metrics")
    if not metrics.is_dir():
        require_root()
    ok, lines = summary_lines(metrics)
    return Answer(ok, {"ok": ok, "lines": lines}, "\n".join(lines))
