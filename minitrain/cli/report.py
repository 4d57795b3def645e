"""Regenerate pictures, manifest and report from what was measured.

Reads data/ and metrics/ of the project in the current folder, as the stage `report`
does, and measures nothing. --readme rewrites the result in README.md, too. Exit code 0:
published, 1: a check breached, which is published instead, 2: a file is missing or
cannot be read.
"""

import argparse
from pathlib import Path

from minitrain.cli.answer import Answer
from minitrain.core.printable import as_lines

EXAMPLES = {
    "after an edit of words or pictures": "minitrain report",
    "folders with other names": "minitrain report --data built --metrics results",
    "README's result, too": "minitrain report --readme",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the project's folders are."""
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="what was built (data)")
    add("--metrics", type=Path, default=Path("metrics"), help="the results (metrics)")
    add("--readme", action="store_true", help="rewrite the result in README.md")


def answer(options: argparse.Namespace) -> Answer:
    """Publish, and name the files."""
    # drawing takes seconds to import: not for --help
    from minitrain.core.errors import EvidenceError
    from minitrain.report.publish import FILES, publish
    from minitrain.report.read import Project
    from minitrain.report.readme import write_result

    project = Project(
        params=Path("params.yaml"),
        shards=options.data / "shards",
        runs=options.data / "runs",
        baseline=options.data / "baseline",
        metrics=options.metrics,
        zoo=Path("studies/zoo/inject.py"),
    )
    ok = True
    try:
        line = publish(project)
    except EvidenceError as breach:
        ok, line = False, str(breach)
    if options.readme:
        write_result(Path("README.md"), options.metrics)
    files = [project.metrics / name for name in FILES]
    made = [str(file) for file in files if file.is_file()]
    return Answer(ok, {"headline": line, "files": made}, as_lines([line, *made]))
