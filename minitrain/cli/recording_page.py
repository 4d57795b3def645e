"""The page of one recording or two: one self-contained HTML file."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from minitrain.cli.shown_words import PARTS, headline, straggler
from minitrain.core.files import open_atomic
from minitrain.recording.shown import Shown
from minitrain.report.numbers import ms, percent, plural
from minitrain.report.pictures import draw_account, draw_losses
from minitrain.report.render import markdown, table, to_html


def write_page(shown: Sequence[Shown], compared: Sequence[str], path: Path) -> None:
    """Write the page of the recordings ``shown`` to ``path``; ``compared`` are lines on
    what two of them have in common.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        facts = [one.facts() for one in shown]
        losses = {f["folder"]: pd.DataFrame(f["losses"]) for f in facts if f["losses"]}
        if losses:
            draw_losses(losses, "Loss at recorded steps", folder / "losses.png")
        title = " and ".join(f["folder"] for f in facts)
        page = markdown(
            "recording.md",
            title=f"Recording {title}" if len(facts) == 1 else f"Recordings {title}",
            recordings=[_section(f, n, folder) for n, f in enumerate(facts)],
            losses=losses,
            compared=compared,
        )
        with open_atomic(path) as file:
            file.write(to_html(page, folder))


def _section(facts: dict[str, Any], number: int, folder: Path) -> dict[str, Any]:
    lines = [headline(facts), *(f"alarm: {line}" for line in facts["alarms"])]
    lines += facts["notes"] or ([] if facts["alarms"] else ["No alarm, no note."])
    if not facts["steps_timed"]:
        return {"facts": facts, "lines": lines, "picture": None}
    ranks = {r: of for r, of in facts["parts"].items() if r != "all"}
    picture = f"account-{number}.png"
    accounts = {f"rank {rank}": of for rank, of in ranks.items()}
    step = facts["parts"]["all"]["step_ms"]
    caption = (
        f"A step takes {ms(step)} (mean of {plural(facts['steps_timed'], 'step')})"
    )
    draw_account(accounts, caption, folder / picture)
    rows = [
        [name, percent(facts["parts"]["all"][part] / step)]
        + [f"{of[part]:.2f}" for of in ranks.values()]
        for part, name in PARTS.items()
        if part in facts["parts"]["all"]
    ]
    return {
        "facts": facts,
        "lines": lines,
        "picture": picture,
        "caption": caption,
        "table": table(["mean ms", "share", *accounts], rows),
        "straggler": straggler(facts),
    }
