"""The result in five lines of a terminal, made from the files that are published."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitrain.core.files import read_csv, read_json, reading
from minitrain.report.facts import COMPUTE, num_hosts, shares_of
from minitrain.report.manifest import over
from minitrain.report.numbers import ms, percent, plural, times

Files = Mapping[str, Any]
# columns of a terminal
WIDTH = 80
CUT = "..."

# a verdict and what it rests on, in short
VERDICTS = {
    "proven": "proven: bits of a one-process replay, a witness agrees",
    "proven in eval mode": "proven in eval mode: bits of a replay; training not seen",
    "replay only": "replay only: bits of a one-process replay, no witness",
    "undecided": "undecided: bits were not promised, or not compared",
}


def summary_lines(metrics: Path) -> tuple[bool, list[str]]:
    """Return whether no run was refused, and five lines; after a breach, the breach.

    Lines have at most WIDTH characters.

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
    found: dict[str, str] = {}
    with reading(metrics / "manifest.json"):
        found["Bits"] = _bits(run, manifest["verdicts"])
        found["Speed"] = _speed(run, manifest)
    timing = read_json(metrics / "timing.json")
    with reading(metrics / "timing.json"):
        found["Time"] = _time(run, timing[run])
    found["Loss"] = _loss(metrics / "losses.csv", run)
    lines = [fitted(f"{name:<7}{text}") for name, text in found.items()]
    # a path that is cut leads nowhere
    lines.append(f"{'Report':<7}{metrics / 'report.html'}")
    return True, lines


def fitted(line: str) -> str:
    """Return ``line``, cut at its end if it is longer than WIDTH."""
    return line if len(line) <= WIDTH else line[: WIDTH - len(CUT)] + CUT


def _bits(largest: str, verdicts: Files) -> str:
    """Return the verdicts, the largest run's first, grouped by verdict."""
    runs: dict[str, list[str]] = {}
    for run in [largest, *(run for run in verdicts if run != largest)]:
        runs.setdefault(verdicts[run]["verdict"], []).append(run)
    if len(runs) > 1:
        told = (f"{', '.join(each)} {verdict}" for verdict, each in runs.items())
        return "; ".join(told)
    (verdict,) = runs
    count = len(verdicts)
    named = ", ".join(verdicts) if count < 3 else f"all {count} runs"
    return f"{named}: {VERDICTS[verdict]}"


def _speed(run: str, manifest: Files) -> str:
    """Return the speed against one process with as many threads, and against one on
    all cores: the fair opponent.
    """
    if busy := manifest["machine_busy"]:
        return f"{run}: busy machine: {busy}"
    opponents = {"one_process": "one process", "all_cores": "all cores"}
    told, undecided = [], []
    for key, opponent in opponents.items():
        ratio, verdict = (manifest[name] for name in over(key))
        if verdict == "no difference seen":
            undecided.append(opponent)
        else:
            told.append(f"{times(ratio)[0]} times {opponent}")
    if undecided:
        told.append(f"no difference to {' or '.join(undecided)}")
    # all arms were on one, wherever the run was
    subject = run if manifest["num_hosts"] == 1 else "one host"
    return f"{subject}: {', '.join(told)}, floor {percent(manifest['noise_floor'])}"


def _time(run: str, timing: Files) -> str:
    account, hosts = timing["account"], num_hosts(timing)
    name = run if hosts == 1 else f"{run} ({plural(hosts, 'host')})"
    if account["closed"] is None:
        return f"{name}: not explained: a part of a step was not measured"
    if not account["closed"]:
        parts, step = account["sum_ms"], account["plain_step_ms"]
        told = f"{ms(parts)} {'of' if parts < step else 'against'} {ms(step)}"
        return f"{name}: not explained: parts add up to {told}"
    shares = shares_of(account)
    compute = percent(sum(shares.get(part, 0) for part in COMPUTE))
    text = f"{name}: computing {compute} of steps"
    exposed = shares.get("comm_exposed_ms")
    if run == "gloo-1" or exposed is None:
        return text
    return f"{text}, exposed communication {percent(exposed)}"


def _loss(path: Path, run: str) -> str:
    table = read_csv(path, "run", "step", "loss")
    with reading(path):
        curves = table.pivot(index="step", columns="run", values="loss")
        first, last = curves[run].iloc[[0, -1]]
        text = f"{first:.2f} at the first step, {last:.2f} at the last"
        if len(curves.columns) == 1:
            return text
        shared = curves.dropna()
        apart = (shared.max(axis="columns") - shared.min(axis="columns")).max()
        return f"{text}; losses at most {apart:.1e} apart"
