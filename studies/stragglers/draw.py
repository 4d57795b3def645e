"""Draw found against injected delays, and steps against laws."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from minitrain.analysis.busy import why_busy
from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, read_json
from minitrain.report.canvas import BLACK, BLUE, GRAY, GREEN, ORANGE, canvas, save
from minitrain.report.numbers import percent

STUDY = Path(__file__).resolve().parent
QUOTA = "share of a core"
# style of each kind of trial
LOOKS = {
    "clean": (GRAY, "o"),
    "sleep": (BLUE, "s"),
    "busy": (GREEN, "D"),
    QUOTA: (ORANGE, "^"),
}
LAWS = {"slowest": (BLUE, "o", "slowest rank"), "mean": (ORANGE, "x", "mean of ranks")}


def main() -> None:
    table = pd.read_csv(STUDY / "results.csv", dtype={"planted": str, "found": str})
    table = table.fillna({"planted": "", "found": ""})
    table["look"] = table["kind"].where(table["kind"].isin([*LOOKS]), QUOTA)
    busy = why_busy(read_json(STUDY / "machine.json")["load"], 0.0)
    figure, axes = canvas(4.0, headline(table, busy), right=0.5, head=0.35)
    draw_found(axes, table)
    box = axes.get_position()
    beside = figure.add_axes((0.6, box.y0, 0.37, box.height))
    draw_laws(beside, table[table["kind"] != "clean"])
    with atomic_path(STUDY / "stragglers.png") as path:
        save(figure, path)


def headline(table: pd.DataFrame, busy: str | None) -> str:
    if busy:
        return f"The machine was busy, so no trial is judged: {busy}"
    right, clean = table["found"] == table["planted"], table["kind"] == "clean"
    counts = [f"{own.sum()} of {len(own)}" for own in (right[~clean], right[clean])]
    slowed, unslowed = counts
    return f"A slow rank is named in {slowed} trials, none in {unslowed} clean ones"


def draw_found(axes: Axes, table: pd.DataFrame) -> None:
    for look, (color, shape) in LOOKS.items():
        own = table[table["look"] == look]
        bars = own["planted_ms"], own["low_ms"], own["high_ms"]
        axes.vlines(*bars, color=color, alpha=0.6)
        # hollow markers for missing or wrong verdicts
        for right, inside in ((True, color), (False, "white")):
            one = own[(own["found"] == own["planted"]) == right]
            known = look if right and len(own) else None
            points = one["planted_ms"], one["excess_ms"], shape
            axes.plot(*points, color=color, mfc=inside, label=known)
    finish(axes, table["planted_ms"].max())
    axes.set_xlabel("injected delay, ms per step")
    axes.set_ylabel("detected delay, ms per step (bars: 90 %)")


def draw_laws(axes: Axes, slowed: pd.DataFrame) -> None:
    for law, (color, shape, name) in LAWS.items():
        predicted = slowed[f"{law}_law_ms"]
        axes.plot(slowed["step_ms"], predicted, shape, color=color, label=name)
    finish(axes, slowed["step_ms"].max(), slowed["mean_law_ms"].min())
    off = (slowed["slowest_law_ms"] / slowed["step_ms"] - 1).abs().median()
    axes.set_title(f"slowest rank: {percent(off)} off (median)", fontsize=9, loc="left")
    axes.set_xlabel("step measured, ms")
    axes.set_ylabel("step predicted from ranks alone, ms")


def finish(axes: Axes, end: float, start: float = 0) -> None:
    axes.axline((start, start), (end, end), color=BLACK, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False, fontsize=9)


if __name__ == "__main__":
    run_stage(main)
