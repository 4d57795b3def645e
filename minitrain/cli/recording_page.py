"""The page of one recording or two: one self-contained HTML file."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from minitrain.cli.shown_words import LEAST_MS, PARTS, headline, straggler
from minitrain.core.files import open_atomic
from minitrain.recording.shown import Shown
from minitrain.report.numbers import ms, percent, plural


def write_page(shown: Sequence[Shown], compared: Sequence[str], path: Path) -> None:
    """Write the page of the recordings ``shown`` to ``path``; ``compared`` are lines on
    what two of them have in common.
    """
    facts = [one.facts() for one in shown]
    title = " and ".join(f["folder"] for f in facts)
    templates = Environment(
        loader=PackageLoader("minitrain.report"),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    page = templates.get_template("recording.html").render(
        title=f"Recording{'s' if len(facts) > 1 else ''} {title}",
        recordings=[_section(f) for f in facts],
        compared=compared,
        **_losses(facts),
    )
    with open_atomic(path) as file:
        file.write(page)


def _section(facts: dict[str, Any]) -> dict[str, Any]:
    lines = [headline(facts), *(f"alarm: {line}" for line in facts["alarms"])]
    lines += facts["notes"] or ([] if facts["alarms"] else ["No alarm, no note."])
    section = {"folder": facts["folder"], "lines": lines, "bars": {}}
    if not facts["steps_timed"]:
        return section
    ranks = {f"rank {r}": of for r, of in facts["parts"].items() if r != "all"}
    every = facts["parts"]["all"]
    step, count = ms(every["step_ms"]), plural(facts["steps_timed"], "step")
    longest = max(LEAST_MS, *(of["step_ms"] for of in ranks.values()))
    rows = {
        part: [name, percent(every[part] / max(every["step_ms"], LEAST_MS))]
        + [f"{of.get(part, 0.0):.2f}" for of in ranks.values()]
        for part, name in PARTS.items()
        if part in every
    }
    return section | {
        "bars": {name: _bar(of, longest) for name, of in ranks.items()},
        "caption": f"A step takes {step} (mean of {count})",
        "header": ["mean ms", "share", *ranks],
        "rows": rows,
        "straggler": straggler(facts),
    }


def _bar(of: dict[str, Any], longest: float) -> list[dict[str, Any]]:
    bar, start = [], 0.0
    for key, name in PARTS.items():
        if key in of and key != "step_ms":
            share, text = of[key] / longest, f"{name}: {ms(of[key])}"
            bar.append({"key": key, "start": start, "share": share, "text": text})
            start += share
    return bar


def _losses(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # points and ticks within a square of side 1, y downwards
    curves = {
        number: [(p["step"], p["loss"]) for p in f["losses"] if isfinite(p["loss"])]
        for number, f in enumerate(facts)
    }
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return {"curves": []}
    (first, *_, last), (low, *_, high) = (
        sorted([*values, values[0]]) for values in zip(*points, strict=True)
    )
    width, height = (last - first) or 1, (high - low) or 1
    return {
        "curves": [
            {
                "folder": facts[number]["folder"],
                "points": [
                    ((x - first) / width, (high - y) / height) for x, y in curve
                ],
            }
            for number, curve in curves.items()
            if curve
        ],
        "ticks": [
            {"y": share, "text": f"{high - share * (high - low):.4g}"}
            for share in (0.0, 0.5, 1.0)
        ],
        "first": first,
        "last": last,
    }
