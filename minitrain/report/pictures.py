"""The charts: scaling, step account, losses."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from minitrain.analysis.account import PARTS, Floats
from minitrain.analysis.busy import NOT_MEASURED
from minitrain.core.arms import Kind
from minitrain.report.canvas import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    canvas,
    save,
)
from minitrain.report.facts import Facts
from minitrain.report.numbers import all_of, ms, plural, thousands

PART_COLORS = {
    "data_ms": "#999999",
    "forward_ms": "#56B4E9",
    "backward_ms": BLUE,
    "backward_compute_ms": BLUE,
    "interference_ms": "#E69F00",
    "wait_ms": "#F0E442",
    "comm_exposed_ms": ORANGE,
    "other_ms": BLACK,
    "optimizer_ms": GREEN,
    "optimizer_comm_ms": PURPLE,
}
DARK_PARTS = ("backward_ms", "backward_compute_ms", "comm_exposed_ms", "optimizer_ms")
RUN_COLORS = (BLUE, ORANGE, GREEN, PURPLE, BLACK)
COLUMNS_OF_LEGEND = 4
# smallest share of the width of a component that is labeled with its number
LABELED = 0.055


def draw_account(
    accounts: Mapping[str, Mapping[str, Any]],
    title: str,
    path: Path,
    busy: Sequence[str] = (),
) -> None:
    """Draw one stacked bar per run, as long as its mean step.

    ``accounts`` maps a run to its account in metrics/timing.json, in milliseconds;
    ``busy`` are runs that were not measured. A negative component (interference is a
    difference) is hatched, left of zero, and explained in the label of the axis.
    """
    runs = [*accounts, *busy]
    table = pd.DataFrame(accounts).reindex([*PARTS]).dropna(how="all").fillna(0.0)
    # space for the longest name, about a hundredth of the width per letter
    left = max(0.1, 0.02 + 0.0105 * max(map(len, runs), default=0))
    head = 0.2 + 0.225 * -(-len(table) // COLUMNS_OF_LEGEND)
    height = 0.7 + 0.8 * len(runs)
    figure, axes = canvas(height, title, right=0.97, left=left, head=head)
    widest = float(table.abs().sum().max()) if len(accounts) else 1.0
    ends = starts = np.zeros(len(accounts))
    for part in table.index:
        values = table.loc[part].to_numpy()
        _add_bars(axes, part, values, np.where(values < 0, starts, ends), widest)
        ends, starts = ends + np.maximum(values, 0), starts + np.minimum(values, 0)
    for row, account in enumerate(accounts.values()):
        text = f"a step: {ms(account['step_ms'])}"
        axes.text(0.006 * widest, row + 0.4, text, va="center", fontsize=9.5)
    for row in range(len(accounts), len(runs)):
        axes.text(0.006 * widest, row, NOT_MEASURED, va="center", color=GRAY)
    axes.set_yticks(range(len(runs)), runs)
    axes.set_ylim(len(runs) - 0.3, -0.6)
    is_negative = (table < 0).any(axis=None)
    hint = "; hatched: a difference of means below zero" if is_negative else ""
    axes.set_xlabel(f"mean milliseconds of a step{hint}")
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(
        handles=[Patch(color=PART_COLORS[p], label=PARTS[p]) for p in table.index],
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=COLUMNS_OF_LEGEND,
        frameon=False,
        columnspacing=1.4,
        handlelength=1.0,
        handletextpad=0.5,
    )
    save(figure, path)


def _add_bars(
    axes: Axes, part: str, values: Floats, starts: Floats, widest: float
) -> None:
    bars = axes.barh(
        np.arange(len(values)),
        values,
        left=starts,
        height=0.52,
        color=PART_COLORS[part],
        edgecolor="white",
        linewidth=0.8,
        hatch=["////" if value < 0 else "" for value in values],
    )
    shown = [f"{v:.1f}" if abs(v) > LABELED * widest else "" for v in values]
    ink = "white" if part in DARK_PARTS else BLACK
    axes.bar_label(bars, shown, label_type="center", color=ink)


def draw_losses(losses: Mapping[str, pd.DataFrame], title: str, path: Path) -> None:
    """Draw the reduced loss of every run (columns step, loss) against the step. Later
    runs have thinner lines, so that coinciding curves all stay visible.
    """
    figure, axes = canvas(3.6, title, right=0.97)
    colors = itertools.cycle(RUN_COLORS)
    for index, (run, loss) in enumerate(losses.items()):
        width = 1.5 + 2.5 * (len(losses) - 1 - index)
        axes.plot(loss["step"], loss["loss"], color=next(colors), lw=width, label=run)
    axes.set_ylabel("loss (nats per token)")
    axes.set_xlabel("step")
    axes.legend(loc="upper right", frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    save(figure, path)


# a line between them would claim speeds of 1.5 processes
DOT: dict[str, Any] = {"marker": "o", "markersize": 7, "linestyle": ""}
DOTTED: dict[str, Any] = {"linestyle": ":", "linewidth": 1.5, "zorder": 1}


class Series(NamedTuple):
    """A line of the scaling chart, labeled at its right end. ``points`` has the columns
    processes, p5, p50 and p95 (of the ideal, p5 and p95 are NaN). ``reference``: also
    draw a horizontal line across the whole width.
    """

    label: str
    points: pd.DataFrame
    color: str
    style: Mapping[str, Any]
    reference: bool = False

    @property
    def end(self) -> float:
        """Median speed at the right end, in tokens per second."""
        return float(self.points["p50"].iloc[-1])


def draw_scaling(f: Facts, title: str, path: Path) -> None:
    """Draw tokens per second against processes; no data if the machine was busy."""
    if f.busy:
        figure, axes = canvas(1.2, title, right=0.97)
        axes.set_axis_off()
        axes.text(0.5, 0.5, NOT_MEASURED, ha="center", va="center", color=GRAY)
        save(figure, path)
        return
    top = int(f.scaling["processes"].max())
    figure, axes = canvas(4.6, title, right=0.67)
    axes.set_xlim(1 - 0.2 * max(top - 1, 0.5), top + 0.1 * max(top - 1, 0.5))
    lines = _series(f, top)
    highest = max(f.scaling["tokens_per_s_p95"].max(), top * lines[0].end)
    axes.set_ylim(0, 1.06 * highest)
    # the legend lists the fastest first
    for line in sorted(lines, key=lambda line: -line.end):
        x, p5, p50, p95 = line.points[["processes", "p5", "p50", "p95"]].to_numpy().T
        label = f"{line.label}\n{thousands(line.end)}"
        axes.plot(x, p50, color=line.color, label=label, **line.style)
        axes.vlines(x, p5, p95, line.color, linewidth=2, alpha=0.7)
        if line.reference:
            axes.axhline(line.end, color=line.color, linewidth=0.8, alpha=0.6)
    axes.set_xticks(sorted({1, *f.scaling["processes"]}))
    axes.set_xlabel("processes")
    axes.set_ylabel("tokens per second")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        frameon=False,
        labelcolor="markeredgecolor",
        labelspacing=0.9,
    )
    note = "dots: medians; vertical lines: 5-95 % of the rounds"
    figure.text(0.99, 0.015, note, ha="right", fontsize=9.5, color=GRAY)
    save(figure, path)


def _series(f: Facts, top: int) -> list[Series]:
    table = f.scaling.rename(columns=lambda name: name.split("_")[-1])
    arms = [f.arms[name] for name in table["arm"]]
    table["kind"] = [arm.kind if arm.is_result else None for arm in arms]

    def points(kind: Kind, dodge: int = 0) -> pd.DataFrame:
        # shifted sideways, so that spreads do not overlap
        found = table[table["kind"] == kind].astype({"processes": float})
        width = max(float(found["processes"].max()) - 1, 0.5)
        return found.assign(processes=found["processes"] + 0.02 * dodge * width)

    one, all_cores = points(Kind.ONE_PROCESS), points(Kind.ALL_CORES, -1)
    threads = plural(int(one["threads"].item()), "thread")
    cores = all_of(int(all_cores["threads"].item()), "core")
    alone = [
        Series(f"one process, {threads}", one, BLACK, DOT, True),
        Series(f"one process, {cores}", all_cores, ORANGE, DOT, True),
    ]
    if top == 1:
        label = f"one process, {f.strategy}"
        return [*alone, Series(label, points(Kind.SYNC, 1), BLUE, DOT)]
    start = alone[0].end
    ideal = pd.DataFrame({"processes": [1, top], "p50": [start, top * start]})
    ideal = ideal.reindex(columns=one.columns)
    ceiling = points(Kind.NO_SYNC, 1)
    return [
        *alone,
        Series(f.strategy, points(Kind.SYNC, -1), BLUE, DOT),
        Series("no communication", ceiling, GREEN, DOT | {"mfc": "white"}),
        Series(f"ideal: {top} times one process", ideal, GRAY, DOTTED),
    ]
