"""Show one recording, or two side by side: what was recorded, alarms, times, losses.

A recording is a folder that `minitrain record` or `minitrain.record(...)` wrote
(docs/recording.md). It shows the steps of its ranks, alarms and notes, where the time
of a step goes, samples a second, the slowest rank and why the others wait. After two of
them comes what `minitrain verify` finds. Exit code 0, or 1 if there is an alarm, or if
the two are not the same computation.
"""

import argparse
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from minitrain.cli.command import Answer
from minitrain.cli.recording_words import PARTS, compared
from minitrain.core.errors import UserError
from minitrain.core.files import open_atomic
from minitrain.core.printable import as_lines
from minitrain.recording.alarm import in_ranks, lacks
from minitrain.report.numbers import ms, percent, plural, thousands

EXAMPLES = {
    "a recording": "minitrain show runs/two",
    "two, on one page": "minitrain show runs/one runs/two --html runs.html",
}
# largest number of ranks with a column in the table
SHOWN_RANKS = 8
NOT_TIMED = (
    "no step was timed: the first four are not, nor are recorded steps, the step after "
    "each, and a step after an evaluation"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the recordings and the HTML page to ``parser``."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="a recording")
    parser.add_argument(
        "other", type=Path, metavar="RUN", nargs="?", help="another, to be compared"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write one self-contained page"
    )


def answer(options: argparse.Namespace) -> Answer:
    """Describe one recording, or compare two; ``ok``: no alarm, same computation."""
    from minitrain.recording.shown import show

    # not a recording, nor a script, in the place of the page
    if (page := options.html) and (page.suffix != ".html" or page.is_dir()):
        raise UserError(f"--html: {page}: must be a file and end in .html")
    folders = [one for one in (options.folder, options.other) if one is not None]
    shown = [show(folder) for folder in folders]
    paragraphs = [as_lines([*_findings(f), *times_in_words(f)]) for f in shown]
    facts: dict[str, Any] = shown[0]
    ok = not any(one["alarms"] for one in shown)
    lines: list[str] = []
    if len(shown) == 2:
        both = compared(*folders)
        lines = both.text.split("\n")
        paragraphs.append(both.text)
        facts = {"recordings": shown, "compared": both.facts}
        ok = ok and both.ok
    if page:
        _write_page(shown, lines, page)
        paragraphs.append(f"written to {page}")
    return Answer(ok, facts, "\n\n".join(paragraphs))


def _findings(facts: dict[str, Any]) -> list[str]:
    lines = [_headline(facts), *(f"alarm: {line}" for line in facts["alarms"])]
    lines += facts["notes"]
    lines += [f"see {page}" for page in facts["pages"]]
    return lines if len(lines) > 1 else [*lines, "no alarm, no note"]


def _headline(facts: dict[str, Any]) -> str:
    ranks = plural(facts["world_size"], "rank")
    steps = plural(facts["num_steps"], "step")
    line = f"{facts['folder']}: {ranks}, {steps}, {facts['num_recorded']} recorded"
    if losses := facts["losses"]:
        first, last = losses[0], losses[-1]
        line += f"; loss {first['loss']:.4g} at step {first['step']}"
        line += f", {last['loss']:.4g} at step {last['step']}"
    if facts["missing_ranks"]:
        line += f"; {lacks(facts['missing_ranks'], facts['folder'])}"
    early: dict[str, list[int]] = {}
    for one in facts["unfinished"]:
        what = "killed, or at work," if one["killed"] else "ended early"
        what += f" after {plural(one['steps'], 'step')}"
        early.setdefault(what, []).append(one["rank"])
    ends = [f"no end of {in_ranks(ranks)}: {what}" for what, ranks in early.items()]
    return "; ".join([line, *ends])


def times_in_words(facts: dict[str, Any]) -> list[str]:
    """Return lines: the time of a step by component and rank, and the slowest rank."""
    if not facts["steps_timed"]:
        return [NOT_TIMED]
    step = facts["parts"]["all"]["step_ms"]
    each = f"a step takes {ms(step)} ({plural(facts['steps_timed'], 'step')} timed)"
    if facts["samples_per_s"]:
        each += f": {thousands(facts['samples_per_s'])} samples a second"
    header, *rows = _table(facts, SHOWN_RANKS, ".1f")
    lines = [f"{header[0]:<32}" + "".join(f"{cell:>9}" for cell in header[1:])]
    for name, *cells in rows:
        lines.append(f"  {name:<30}" + "".join(f"{cell:>9}" for cell in cells))
    if (more := len(facts["parts"]) - 1 - SHOWN_RANKS) > 0:
        lines.append(f"  and {plural(more, 'rank')} more: --html and --json have all")
    return [each, *lines, straggler(facts)]


def _table(facts: dict[str, Any], most: int | None, spec: str) -> list[list[str]]:
    # return rows of cells: for each component its share of a step, then means by rank
    every = facts["parts"]["all"]
    ranks = [rank for rank in facts["parts"] if rank != "all"][:most]
    rows = [["ms", "share", *(f"rank {rank}" for rank in ranks)]]
    for part in filter(every.__contains__, PARTS):
        share = percent(every[part] / every["step_ms"])
        cells = [format(facts["parts"][rank].get(part, 0.0), spec) for rank in ranks]
        rows.append([PARTS[part], share, *cells])
    return rows


def straggler(facts: dict[str, Any]) -> str:
    """Return a line: the slowest rank, that none is slow, or why it is undecided."""
    found = facts["stragglers"]
    if found["undecided"]:
        return f"slow rank: undecided: {found['undecided']}"
    if not found["slow"]:
        visible = ms(found["visible_ms"])
        return f"no rank is slow: one whose own work takes {visible} more would show"
    slow, part = found["slow"][0], PARTS[facts["late_part"]]
    line = (
        f"rank {slow['rank']} is {ms(slow['excess_ms'])} late in each step, in {part}"
    )
    if found["others_wait_ms"] is not None:
        line += f"; the others wait {ms(found['others_wait_ms'])}"
    return line


def _write_page(
    shown: Sequence[dict[str, Any]], comparison: Sequence[str], path: Path
) -> None:
    # jinja2 comes with torch; minitrain.report.render would need pandas
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("minitrain.report"),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    names = " and ".join(one["folder"] for one in shown)
    page = templates.get_template("recording.html").render(
        title=f"Recording{'s' if len(shown) > 1 else ''} {names}",
        recordings=[_section(one) for one in shown],
        compared=comparison,
        **_losses(shown),
    )
    with open_atomic(path) as file:
        # a name that is not UTF-8 has lone surrogates
        file.write(page.encode("utf-8", "backslashreplace").decode())


def _section(facts: dict[str, Any]) -> dict[str, Any]:
    section = {"folder": facts["folder"], "lines": _findings(facts), "bars": {}}
    if not facts["steps_timed"]:
        return section | {"not_timed": NOT_TIMED}
    parts = facts["parts"]
    ranks = {f"rank {rank}": of for rank, of in parts.items() if rank != "all"}
    step, count = ms(parts["all"]["step_ms"]), plural(facts["steps_timed"], "step")
    longest = max(of["step_ms"] for of in ranks.values())
    header, *rows = _table(facts, None, ".2f")
    keys = [part for part in PARTS if part in parts["all"]]
    return section | {
        "bars": {name: _bar(of, longest) for name, of in ranks.items()},
        "caption": f"A step takes {step} (mean of {count})",
        "header": header,
        "rows": dict(zip(keys, rows, strict=True)),
        "straggler": straggler(facts),
    }


def _bar(of: dict[str, Any], longest: float) -> list[dict[str, Any]]:
    return [
        {"key": key, "share": of[key] / longest, "text": f"{name}: {ms(of[key])}"}
        for key, name in PARTS.items()
        if key in of and key != "step_ms"
    ]


def _losses(shown: Sequence[dict[str, Any]]) -> dict[str, Any]:
    curves = []
    for one in shown:
        points = [(p["step"], p["loss"]) for p in one["losses"] if isfinite(p["loss"])]
        if points:
            curves.append({"folder": one["folder"], "points": points})
    if not curves:
        return {"curves": []}
    steps, losses = zip(*(p for curve in curves for p in curve["points"]), strict=True)
    first, last, low, high = min(steps), max(steps), min(losses), max(losses)
    return {"curves": curves, "first": first, "last": last, "low": low, "high": high}
