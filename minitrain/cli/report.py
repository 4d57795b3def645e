"""Regenerate pictures, manifest and report from what was measured.

Reads data/ and metrics/ of the project in the current folder, as the stage `report`
does, and measures nothing. --readme rewrites the result in README.md, too. Exit code 0:
published, 1: a check breached, so there is no result, 2: a file is missing or cannot be
read.
"""

import argparse
from pathlib import Path

from minitrain.cli.command import Answer

EXAMPLES = {
    "after an edit of words or pictures": "minitrain report",
    "README's result, too": "minitrain report --readme",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--readme`` to ``parser``."""
    text = "rewrite the result in README.md"
    parser.add_argument("--readme", action="store_true", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Publish the report; the text is its headline and its path."""
    # drawing takes seconds to import: not for --help
    from minitrain.report.publish import publish
    from minitrain.report.published import result_block
    from minitrain.report.render import write_marked

    line, metrics = publish(Path()), Path("metrics")
    if options.readme:
        write_marked(Path("README.md"), "result", result_block(metrics))
    page = str(metrics / "report.html")
    return Answer(True, {"headline": line, "report": page}, f"{line}\n{page}")
