"""Regenerate pictures, manifest and report from what was measured.

Reads data/ and metrics/ of the project in the current folder, as the stage `report`
does, and measures nothing. --readme rewrites the result in README.md, too. Exit code 0:
published, 1: a check breached, which is published instead, 2: a file is missing or
cannot be read.
"""

import argparse
from pathlib import Path

from minitrain.cli.answer import Answer
from minitrain.core.errors import EvidenceError
from minitrain.core.printable import as_lines

EXAMPLES = {
    "after an edit of words or pictures": "minitrain report",
    "README's result, too": "minitrain report --readme",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    text = "rewrite the result in README.md"
    parser.add_argument("--readme", action="store_true", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Publish, and name the files."""
    # drawing takes seconds to import: not for --help
    from minitrain.report.publish import FILES, publish
    from minitrain.report.read import Project
    from minitrain.report.readme import write_result

    data, metrics = Path("data"), Path("metrics")
    project = Project(
        params=Path("params.yaml"),
        shards=data / "shards",
        runs=data / "runs",
        baseline=data / "baseline",
        metrics=metrics,
        zoo=Path("studies/zoo/inject.py"),
    )
    ok = True
    try:
        line = publish(project)
    except EvidenceError as breach:
        ok, line = False, str(breach)
    if options.readme:
        write_result(Path("README.md"), metrics)
    made = [str(metrics / name) for name in FILES if (metrics / name).is_file()]
    return Answer(ok, {"headline": line, "files": made}, as_lines([line, *made]))
