"""The charts: scaling, step account, losses."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from minitrain.analysis.account import PARTS
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
    height = 0.7 + 0.8 * len(runs)
    # space for the longest name, about a hundredth of the width per letter
    left = max(0.1, 0.02 + 0.0105 * max(map(len, runs), default=0))
    legend = [
        Patch(color=PART_COLORS[part], label=PARTS[part])
        for part in PARTS
        if any(of.get(part) is not None for of in accounts.values())
    ]
    columns = 4 if len(legend) <= 8 else 3
    head = 0.2 + 0.225 * -(-len(legend) // columns)
    figure, axes = canvas(height, title, right=0.97, left=left, head=head)
    extents = [sum(abs(of.get(p) or 0.0) for p in PARTS) for of in accounts.values()]
    widest = max(extents, default=1.0)
    for row, account in enumerate(accounts.values()):
        _stack(axes, row, account, widest)
        text = f"a step: {ms(account['step_ms'])}"
        axes.text(0.006 * widest, row + 0.4, text, va="center", fontsize=9.5)
    for row in range(len(accounts), len(runs)):
        axes.text(0.006 * widest, row, NOT_MEASURED, va="center", color=GRAY)
    axes.set_yticks(range(len(runs)), runs)
    axes.set_ylim(len(runs) - 0.3, -0.6)
    negative = [p for of in accounts.values() for p in PARTS if (of.get(p) or 0.0) < 0]
    hint = "; hatched: a difference of means below zero" if negative else ""
    axes.set_xlabel(f"mean milliseconds of a step{hint}")
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(
        handles=legend,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=columns,
        frameon=False,
        columnspacing=1.4,
        handlelength=1.0,
        handletextpad=0.5,
    )
    save(figure, path)


def _stack(axes: Axes, row: int, account: Mapping[str, Any], widest: float) -> None:
    right = left = 0.0
    # components too narrow for a number, which is above them: middle, value and color
    narrow: list[tuple[float, float, str]] = []
    for part in PARTS:
        value = account.get(part) or 0.0
        start = right if value >= 0 else left
        axes.barh(
            row,
            value,
            left=start,
            height=0.52,
            color=PART_COLORS[part],
            edgecolor="white",
            linewidth=0.8,
            hatch="////" if value < 0 else None,
        )
        middle = start + value / 2
        if abs(value) > 0.055 * widest:
            ink = "white" if part in DARK_PARTS else BLACK
            axes.text(middle, row, f"{value:.1f}", ha="center", va="center", color=ink)
        elif abs(value) >= 0.05:
            narrow.append((middle, value, PART_COLORS[part]))
        right, left = right + max(value, 0), left + min(value, 0)
    narrow.sort()
    places = spread([middle for middle, *_ in narrow], 0.045 * widest)
    for x, (middle, value, color) in zip(places, narrow, strict=True):
        axes.plot([middle, x], [row - 0.26, row - 0.33], color=color, linewidth=1)
        axes.text(x, row - 0.34, f"{value:.1f}", ha="center", va="bottom", fontsize=8)


def draw_losses(losses: Mapping[str, pd.DataFrame], title: str, path: Path) -> None:
    """Draw the reduced loss of every run (columns step, loss) against the step, and
    below it the absolute difference from the first run on a logarithmic axis. Later
    runs have thinner lines, so that coinciding curves all stay visible.
    """
    figure, axes = canvas(3.6 if len(losses) == 1 else 5.2, title, right=0.97)
    colors = dict(zip(losses, itertools.cycle(RUN_COLORS), strict=False))
    for index, (run, loss) in enumerate(losses.items()):
        width = 1.5 + 2.5 * (len(losses) - 1 - index)
        axes.plot(loss["step"], loss["loss"], color=colors[run], lw=width, label=run)
    axes.set_ylabel("loss (nats per token)")
    axes.legend(loc="upper right", frameon=False)
    panels = [axes]
    if len(losses) > 1:
        panels.append(_draw_differences(axes, losses, colors))
    for panel in panels:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    panels[-1].set_xlabel("step")
    save(figure, path)


def _draw_differences(
    axes: Axes, losses: Mapping[str, pd.DataFrame], colors: Mapping[str, str]
) -> Axes:
    # a panel in the lower third of ``axes``, which shrinks
    x0, y0, width, height = axes.get_position().bounds
    axes.set_position((x0, y0 + 0.42 * height, width, 0.58 * height))
    below = axes.figure.add_axes((x0, y0, width, 0.3 * height), sharex=axes)
    first, *others = losses
    reference = losses[first].set_index("step")["loss"]
    for run in others:
        apart = (losses[run].set_index("step")["loss"] - reference).abs()
        # equal losses have no place on a logarithmic axis
        below.plot(apart[apart > 0], ".", color=colors[run], markersize=4)
    below.set_yscale("log")
    below.set_ylabel(f"difference\nfrom {first}")
    below.spines[["top", "right"]].set_visible(False)
    return below


# a line between them would claim speeds of 1.5 processes
DOT: dict[str, Any] = {"marker": "o", "markersize": 7, "linestyle": ""}


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
    scaling, arms = f.scaling, f.arms
    results = scaling[[arms[name].is_result for name in scaling["arm"]]]
    kinds = results["arm"].map(lambda name: arms[name].kind)
    by_kind = dict(list(results.groupby(kinds)))
    top = int(scaling["processes"].max())
    figure, axes = canvas(4.6, title, right=0.67)
    axes.set_xlim(1 - 0.2 * max(top - 1, 0.5), top + 0.1 * max(top - 1, 0.5))
    lines = _series(by_kind, top, f.strategy)
    highest = max(scaling["tokens_per_s_p95"].max(), top * lines[0].end)
    axes.set_ylim(0, 1.06 * highest)
    for line in lines:
        points, color = line.points, line.color
        axes.plot(points["processes"], points["p50"], color=color, **line.style)
        known = points.dropna()
        bounds = known["processes"], known["p5"], known["p95"]
        axes.vlines(*bounds, color, linewidth=2, alpha=0.7)
        if line.reference:
            axes.axhline(line.end, color=color, linewidth=0.8, alpha=0.6)
    axes.set_xticks(sorted({1, *scaling["processes"]}))
    axes.set_xlabel("processes")
    axes.set_ylabel("tokens per second")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    _label_ends(axes, lines)
    note = "dots: medians; vertical lines: 5-95 % of the rounds"
    figure.text(0.99, 0.015, note, ha="right", fontsize=9.5, color=GRAY)
    save(figure, path)


def _series(
    by_kind: Mapping[Kind, pd.DataFrame], top: int, strategy: str
) -> list[Series]:
    one, all_cores = by_kind[Kind.ONE_PROCESS], by_kind[Kind.ALL_CORES]
    label = f"one process, {plural(int(one['threads'].item()), 'thread')}"
    cores = f"one process, {all_of(int(all_cores['threads'].item()), 'core')}"
    alone = [
        Series(label, _points(one), BLACK, DOT, True),
        Series(cores, _points(all_cores, dodge=-1), ORANGE, DOT, True),
    ]
    together = by_kind[Kind.SYNC]
    if top == 1:
        points = _points(together, dodge=1)
        return [*alone, Series(f"one process, {strategy}", points, BLUE, DOT)]
    start = alone[0].end
    dotted = {"linestyle": ":", "linewidth": 1.5, "zorder": 1}
    ceiling = _points(by_kind[Kind.NO_SYNC], dodge=1)
    ideal = pd.DataFrame({"processes": [1, top], "p50": [start, top * start]})
    ideal = ideal.reindex(columns=ceiling.columns)
    return [
        *alone,
        Series(strategy, _points(together, dodge=-1), BLUE, DOT),
        Series("no communication", ceiling, GREEN, DOT | {"mfc": "white"}),
        Series(f"ideal: {top} times one process", ideal, GRAY, dotted),
    ]


def _points(rows: pd.DataFrame, *, dodge: int = 0) -> pd.DataFrame:
    """Return the points of arms, shifted sideways so that spreads do not overlap."""
    rows = rows.sort_values("processes").rename(columns=lambda n: n.split("_")[-1])
    aside = 0.02 * dodge * max(float(rows["processes"].max()) - 1, 0.5)
    points = rows[["processes", "p5", "p50", "p95"]].astype(float)
    points["processes"] += aside
    return points


def _label_ends(axes: Axes, series: Sequence[Series]) -> None:
    lines = sorted(series, key=lambda line: line.end)
    (_, right), (_, top) = axes.get_xlim(), axes.get_ylim()
    heights = spread([line.end for line in lines], 0.1 * top)
    for line, height in zip(lines, heights, strict=True):
        x = right if line.reference else line.points["processes"].iloc[-1]
        axes.annotate(
            f"{line.label}\n{thousands(line.end)}",
            xy=(x, line.end),
            xytext=(1.05, height),
            textcoords=axes.get_yaxis_transform(),
            color=line.color,
            va="center",
            linespacing=1.05,
            arrowprops={
                "arrowstyle": "-",
                "color": line.color,
                "linewidth": 0.7,
                "alpha": 0.6,
                "relpos": (0, 0.5),
                "shrinkB": 0 if line.reference else 6,
            },
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending ``heights`` at least ``gap`` apart, each as little as possible.

    The least-squares solution groups overlapping neighbors around their mean (the
    pool-adjacent-violators algorithm).
    """
    blocks: list[tuple[float, int]] = []
    for index, height in enumerate(heights):
        mean, size = height - index * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean = (mean * size + other * count) / (size + count)
            size += count
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    return [mean + index * gap for index, mean in enumerate(flat)]
