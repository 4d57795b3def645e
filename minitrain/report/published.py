"""The result in short, from published files: README's table, and five lines of text."""

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from minitrain.analysis.comparison import SpeedVerdict
from minitrain.core.arms import baseline_arms
from minitrain.core.files import read_csv, read_json, reading
from minitrain.report.facts import COMPUTE, most_apart, shares_of, strategy_name
from minitrain.report.render import markdown, sentence

WIDTH = 80
# of a run in timing.json
TIMING = ("account", "num_hosts", "machine_busy")


def summary_lines(metrics: Path) -> tuple[bool, list[str]]:
    """Return True and the result in five lines; after a breach (a failed check), False
    and lines that name it. Raises UserError if a file in the folder ``metrics`` is
    damaged, and OSError if one is missing.
    """
    if breach := read_json(metrics / "summary.json").get("breach"):
        lines = textwrap.wrap(f"Breach: {breach}.", WIDTH)
        where = f"No result was published; see {metrics / 'report.md'}."
        return False, [*lines, where]
    keys = ("verdicts", "over_all_cores_verdict", "world_size")
    manifest = read_json(metrics / "manifest.json", *keys)
    run = f"gloo-{manifest['world_size']}"
    losses = read_csv(metrics / "losses.csv", "run", "step", "loss")
    found = {
        "Bits": _bits(run, manifest["verdicts"]),
        "Speed": _speed(run, manifest),
        "Time": _time(run, metrics / "timing.json"),
        "Loss": _loss(losses.pivot(index="step", columns="run", values="loss"), run),
        "Report": str(metrics / "report.html"),
    }
    return True, [f"{name:<7}{text}" for name, text in found.items()]


def _bits(largest: str, verdicts: dict[str, dict[str, str]]) -> str:
    runs: dict[str, list[str]] = {}
    # the largest run comes first
    for run in sorted(verdicts, key=lambda run: run != largest):
        runs.setdefault(verdicts[run]["verdict"], []).append(run)
    return sentence("bits_line", runs, [*verdicts])


def _speed(run: str, manifest: dict[str, Any]) -> str:
    decided, undecided = {}, []
    for opponent in ("one process", "all cores"):
        key = f"over_{opponent.replace(' ', '_')}"
        if manifest[f"{key}_verdict"] == SpeedVerdict.UNDECIDED:
            undecided.append(opponent)
        else:
            decided[opponent] = manifest[key]
    return sentence("speed_line", run, manifest, decided, undecided)


def _time(run: str, file: Path) -> str:
    timing = read_json(file, run)[run]
    with reading(file):
        account, hosts, busy = map(timing.__getitem__, TIMING)
    shares = shares_of(account) if account["step_ms"] is not None else {}
    compute = sum(shares.get(part, 0) for part in COMPUTE)
    return sentence("time_line", run, hosts, busy, account, shares, compute)


def _loss(curves: pd.DataFrame, run: str) -> str:
    first, last = curves[run].iloc[[0, -1]]
    apart = most_apart(curves.dropna()) if len(curves.columns) > 1 else None
    return sentence("loss_line", first, last, apart)


def result_block(metrics: Path) -> Markup:
    """Return README's table of results, with a caption, from files in ``metrics``."""
    manifest = read_json(metrics / "manifest.json", "sync", "world_size")
    scaling = read_csv(metrics / "scaling.csv", "arm", "processes")
    return markdown(
        "result.md",
        scaling=scaling.to_dict("records"),
        arms={arm.name: arm for arm in baseline_arms(scaling["processes"])},
        strategy=strategy_name(manifest["sync"]),
        made=manifest,
        timing=read_json(metrics / "timing.json"),
        equivalence=read_json(metrics / "equivalence.json"),
        largest=f"gloo-{manifest['world_size']}",
    )
