"""Draw what checkpoints cost of the training time; write that, and times, as tables."""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Comparison, Rounds
from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.canvas import BLUE, GRAY, canvas, save
from minitrain.report.numbers import ms, percent

STUDY = Path(__file__).resolve().parent
WITHOUT, AGAIN = "none", "none again"
# ms of single saves and reads
Times = dict[str, "pd.Series[float]"]


def main() -> None:
    rows = pd.read_csv(STUDY / "rounds.csv")
    found = pd.read_csv(STUDY / "times.csv")
    times: Times = {
        str(what): own["ms"] for what, own in found.groupby("what", sort=False)
    }
    disk = read_json(STUDY / "disk.json")
    arms = list(rows["arm"].unique())
    rounds = Rounds(rows, arms, [(WITHOUT, AGAIN)], "rounds.csv")
    costs = {a: rounds.compare(a, WITHOUT) for a in arms if a not in (WITHOUT, AGAIN)}
    draw(costs, times, rounds.noise_floor())
    told = [
        measured_where(disk["provenance"]),
        saves(costs, times, disk["mb_per_rank"]),
    ]
    told.append(reads({what: own for what, own in times.items() if what not in costs}))
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n\n".join(told) + "\n")


def share(ratio: float) -> float:
    # of the time without: a run at 0.98 of the speed takes 2 % longer
    return 1 / ratio - 1


def draw(costs: dict[str, Comparison], times: Times, floor: float) -> None:
    first = next(iter(costs))
    title = (
        f"A checkpoint ({first} steps) costs {percent(share(costs[first].ratio))} "
        f"of the training time, where {percent(floor)} is noise; "
        f"a save takes {ms(times[first].median())}"
    )
    figure, axes = canvas(0.6 + 0.4 * len(costs), title, right=0.97, left=0.33)
    axes.axvspan(-100 * floor, 100 * floor, color="#eeeeee")
    for row, found in enumerate(costs.values()):
        low, high = 100 * share(found.high), 100 * share(found.low)
        axes.hlines(row, low, high, BLUE, linewidth=2)
        axes.plot(100 * share(found.ratio), row, "o", color=BLUE)
    axes.axvline(0, color=GRAY, linewidth=0.8)
    axes.set_yticks(range(len(costs)), [f"{name} steps" for name in costs])
    axes.set(ylim=(len(costs) - 0.5, -0.5))
    axes.set_xlabel("more time than without, in % (5-95 % interval; gray: noise floor)")
    with atomic_path(STUDY / "checkpoints.png") as path:
        save(figure, path)


def saves(costs: dict[str, Comparison], times: Times, disk: dict[str, float]) -> str:
    heads = "| checkpoints | more time | 5-95 % | verdict | one save | p95 | on disk |"
    lines = [heads, "|---" * 7 + "|"]
    for name, found in costs.items():
        took = times[name]
        more = f"{percent(share(found.high))} to {percent(share(found.low))}"
        cells = [f"{name} steps", percent(share(found.ratio)), more, found.verdict]
        cells += [ms(float(took.median())), ms(float(took.quantile(0.95)))]
        lines.append(f"| {' | '.join(cells)} | {disk[name]:.1f} MB per rank |")
    return "\n".join(lines)


def reads(times: Times) -> str:
    lines = ["| to go on | median | largest |", "|---|---|---|"]
    for what, took in times.items():
        lines.append(f"| {what} | {ms(took.median())} | {ms(took.max())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_stage(main)
