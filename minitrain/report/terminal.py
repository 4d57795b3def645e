"""The result in five lines of a terminal, made from the files that are published."""

import textwrap
from pathlib import Path
from typing import Any

from minitrain.analysis.comparison import Verdict
from minitrain.core.files import read_csv, read_json, reading
from minitrain.report.facts import COMPUTE, most_apart, shares_of
from minitrain.report.render import sentence

# columns of a terminal
WIDTH = 80


def summary_lines(metrics: Path) -> tuple[bool, list[str]]:
    """Return whether no run was refused, and five lines; after a breach, the breach.

    Raises:
        UserError: A file in the folder ``metrics`` is damaged.
        OSError: A file is missing.
    """
    if breach := read_json(metrics / "summary.json").get("breach"):
        lines = textwrap.wrap(f"Breach: {breach}.", WIDTH)
        where = f"No result was published; see {metrics / 'report.md'}."
        return False, [*lines, where]
    manifest = read_json(metrics / "manifest.json", "lesson_notes", "world_size")
    run = f"gloo-{manifest['world_size']}"
    with reading(metrics / "manifest.json"):
        bits = _bits(run, manifest["verdicts"])
        speed = _speed(run, manifest)
    timing = read_json(metrics / "timing.json")
    with reading(metrics / "timing.json"):
        account = timing[run]["account"]
        shares = shares_of(account) if account["closed"] else {}
        compute = sum(shares.get(part, 0) for part in COMPUTE)
        hosts = timing[run]["num_hosts"]
        time = sentence("time_line", run, hosts, account, shares, compute)
    found = {"Bits": bits, "Speed": speed, "Time": time}
    found["Loss"] = _loss(metrics / "losses.csv", run)
    found["Report"] = str(metrics / "report.html")
    return True, [f"{name:<7}{text}" for name, text in found.items()]


def _bits(largest: str, verdicts: dict[str, dict[str, str]]) -> str:
    runs: dict[str, list[str]] = {}
    # the largest run's verdict first
    for run in sorted(verdicts, key=lambda run: run != largest):
        runs.setdefault(verdicts[run]["verdict"], []).append(run)
    return sentence("bits_line", runs, [*verdicts])


def _speed(run: str, manifest: dict[str, Any]) -> str:
    decided, undecided = {}, []
    for opponent in ("one process", "all cores"):
        key = f"over_{opponent.replace(' ', '_')}"
        if manifest[f"{key}_verdict"] == Verdict.UNDECIDED:
            undecided.append(opponent)
        else:
            decided[opponent] = manifest[key]
    return sentence("speed_line", run, manifest, decided, undecided)


def _loss(path: Path, run: str) -> str:
    table = read_csv(path, "run", "step", "loss")
    with reading(path):
        curves = table.pivot(index="step", columns="run", values="loss")
        first, last = curves[run].iloc[[0, -1]]
        several = len(curves.columns) > 1
        apart = most_apart(curves.dropna()) if several else None
        return sentence("loss_line", first, last, apart)
