"""Make pictures, manifest, report and README's result again from what was measured.

Reads data/ and metrics/ of the project in the current folder, as the stage report does,
and measures nothing. Exit code 0: published, 1: the evidence has a breach, which is
published instead, 2: a file is missing or cannot be read.
"""

import argparse
from pathlib import Path

from minitrain.cli.answer import Answer

EXAMPLES = {
    "after an edit of words or pictures": "minitrain report",
    "of folders of another name": "minitrain report --data built --metrics results",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the project's folders are."""
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="what was built (data)")
    add("--metrics", type=Path, default=Path("metrics"), help="the results (metrics)")


def answer(options: argparse.Namespace) -> Answer:
    """Publish, and name what was written."""
    # drawing takes seconds to import: not for --help
    from minitrain.core.errors import EvidenceError
    from minitrain.report.publish import FILES, Project, publish

    project = Project(
        params=Path("params.yaml"),
        shards=options.data / "shards",
        runs=options.data / "runs",
        baseline=options.data / "baseline",
        metrics=options.metrics,
        readme=Path("README.md"),
        zoo=Path("studies/zoo/inject.py"),
    )
    ok = True
    try:
        said = publish(project)
    except EvidenceError as breach:
        ok, said = False, str(breach)
    files = [project.metrics / name for name in FILES]
    made = [str(file) for file in files if file.is_file()]
    return Answer(ok, {"headline": said, "files": made}, "\n".join([said, *made]))
