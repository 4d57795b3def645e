"""Show one recording, or two side by side: what was recorded, alarms, times, losses.

A recording is a folder that `minitrain record` or `minitrain.record(...)` wrote
(docs/recording.md). It shows the steps of its ranks, alarms and notes, where the time
of a step goes, samples a second, the slowest rank and why the others wait. After two of
them comes what `minitrain verify` finds. Exit code 0, or 1 if there is an alarm, or if
the two are not the same computation.
"""

import argparse
from pathlib import Path
from typing import Any

from minitrain.cli.answer import Answer
from minitrain.cli.shown_words import in_words
from minitrain.core.errors import UserError

EXAMPLES = {
    "a recording": "minitrain show runs/two",
    "two, on one page": "minitrain show runs/one runs/two --html runs.html",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the recordings and the page."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="a recording")
    parser.add_argument(
        "other", type=Path, metavar="RUN", nargs="?", help="another, to be compared"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write one self-contained page"
    )


def answer(options: argparse.Namespace) -> Answer:
    """Read one recording or two."""
    from minitrain.recording.shown import read_shown

    page = options.html
    if page and page.suffix != ".html":
        raise UserError(f"--html: {page}: must end in .html")
    folders = [one for one in (options.folder, options.other) if one is not None]
    shown = [read_shown(folder) for folder in folders]
    parts = ["\n".join(in_words(one)) for one in shown]
    facts: dict[str, Any] = shown[0].facts()
    compared: list[str] = []
    ok = not any(one.lines("alarm") for one in shown)
    if len(shown) == 2:
        from minitrain.cli.verify import compared as compare

        found, of_both, text = compare(*folders)
        compared = text.split("\n")
        parts.append(text)
        facts = {"recordings": [one.facts() for one in shown], "compared": of_both}
        ok = ok and found.same
    if page:
        from minitrain.cli.recording_page import write_page

        write_page(shown, compared, page)
    return Answer(ok, facts, "\n\n".join(parts))
