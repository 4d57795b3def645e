"""Draw the outcomes of each kind of fault, and the detection and recovery times."""

from pathlib import Path

import pandas as pd
from kinds import SHOWN
from matplotlib.axes import Axes

from minitrain.core.errors import run_stage
from minitrain.core.files import read_csv
from minitrain.report.canvas import BLACK, BLUE, GRAY, GREEN, ORANGE, canvas, save

STUDY = Path(__file__).resolve().parent
COLORS = {
    "undisturbed": GRAY,
    "restarted": GREEN,
    "repeated": BLUE,
    "repaired": BLACK,
    "wrong": ORANGE,
}
TIMES = {"detection_s": ("o", BLACK), "recovery_s": ("|", GREEN)}


def main() -> None:
    table = read_csv(STUDY / "results.csv", "kind", "outcome", "wrong", *TIMES)
    draw(table)


def draw(table: pd.DataFrame) -> None:
    bad = table["wrong"].notna()
    kinds = [*table["kind"].drop_duplicates()]
    title = f"{len(table) - bad.sum()} of {len(table)} disturbed pipelines ended in"
    title += " the same bytes"
    if by_hand := (table["outcome"] == "repaired").sum():
        title += f", {by_hand} of them after a documented command"
    figure, axes = canvas(0.22 * len(kinds) + 0.5, title, right=0.56, left=0.25)
    outcome = table["outcome"].where(~bad, "wrong")
    left = pd.Series(0, index=kinds)
    for name, color in COLORS.items():
        counts = table["kind"][outcome == name].value_counts().reindex(kinds)
        counts = counts.fillna(0).astype(int)
        axes.barh(kinds, counts, left=left, color=color, label=name, height=0.7)
        left = left + counts
    finish(axes, kinds, "trials")
    # next to it, with the same rows
    box = axes.get_position()
    beside = figure.add_axes((0.6, box.y0, 0.37, box.height))
    for name, (marker, color) in TIMES.items():
        label = name.removesuffix("_s")
        rows = table["kind"].map(kinds.index)
        beside.plot(table[name], rows, marker, color=color, label=label, alpha=0.6)
    finish(beside, [""] * len(kinds), "seconds after the fault, or after the new start")
    beside.set_xlim(left=0)
    save(figure, STUDY / "chaos.png")


def finish(axes: Axes, names: list[str], said: str) -> None:
    shown = [SHOWN.get(name, name.replace("_", " ")) for name in names]
    axes.set_yticks(range(len(names)), shown, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(said, fontsize=9)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    # not across the legend
    axes.spines["left"].set_bounds(len(names) - 0.4, -0.3)
    # above the plot
    axes.legend(
        fontsize=8,
        ncol=5,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 0.985),
        borderaxespad=0,
        columnspacing=1,
        handlelength=1,
    )


if __name__ == "__main__":
    run_stage(main)
