"""The charts: scaling, step account, losses."""

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
    """Draw one stacked bar per run, with the length of its mean step.

    ``accounts`` maps a run to its account in metrics/timing.json; ``busy`` are runs
    that were not measured. A negative component (interference is a difference) is
    hatched and drawn to the left of zero.
    """
    runs = [*accounts, *busy]
    height = 0.7 + 0.7 * len(runs)
    # space for the longest name, about a hundredth of the width per letter
    left = max(0.1, 0.02 + 0.0105 * max(map(len, runs), default=0))
    figure, axes = canvas(height, title, right=0.97, left=left, head=0.65)
    widest = max(map(_extent, accounts.values()), default=1.0)
    for row, account in enumerate(accounts.values()):
        _stack(axes, row, account, widest)
        text = f"a step: {ms(account['step_ms'])}"
        axes.text(0.006 * widest, row + 0.4, text, va="center", fontsize=9.5)
    for row in range(len(accounts), len(runs)):
        axes.text(0.006 * widest, row, NOT_MEASURED, va="center", color=GRAY)
    axes.set_yticks(range(len(runs)), runs)
    axes.set_ylim(len(runs) - 0.3, -0.45)
    axes.set_xlabel("mean milliseconds of a step")
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(
        handles=_part_legend(accounts),
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=4,
        frameon=False,
        columnspacing=1.4,
        handlelength=1.0,
        handletextpad=0.5,
    )
    save(figure, path)


def _extent(account: Mapping[str, Any]) -> float:
    return sum(abs(account.get(part) or 0.0) for part in PARTS)


def _stack(axes: Axes, row: int, account: Mapping[str, Any], widest: float) -> None:
    right = left = 0.0
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
        if abs(value) > 0.055 * widest:
            ink = "white" if part in DARK_PARTS else BLACK
            middle = start + value / 2
            axes.text(middle, row, f"{value:.1f}", ha="center", va="center", color=ink)
        right, left = right + max(value, 0), left + min(value, 0)


def _part_legend(accounts: Mapping[str, Mapping[str, Any]]) -> list[Patch]:
    return [
        Patch(color=PART_COLORS[part], label=PARTS[part])
        for part in PARTS
        if any(account.get(part) is not None for account in accounts.values())
    ]


def draw_losses(losses: Mapping[str, pd.DataFrame], title: str, path: Path) -> None:
    """Draw the reduced loss of every run (columns step, loss) against the step.

    Later runs have thinner lines, so that coinciding curves all stay visible.
    """
    figure, axes = canvas(3.6, title, right=0.97)
    for index, (run, loss) in enumerate(losses.items()):
        width = 1.5 + 2.5 * (len(losses) - 1 - index)
        color = RUN_COLORS[index % len(RUN_COLORS)]
        axes.plot(loss["step"], loss["loss"], color=color, linewidth=width, label=run)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.legend(loc="upper right", frameon=False)
    save(figure, path)


DOT: dict[str, Any] = {"marker": "o", "markersize": 7, "linewidth": 2}


class Series(NamedTuple):
    """A line of the scaling chart, labeled at its right end.

    ``points`` has the columns processes, p5, p50 and p95; a first point that belongs to
    another series has no p5 and p95. A ``reference`` spans the whole width.
    """

    label: str
    points: pd.DataFrame
    color: str
    style: Mapping[str, Any]
    reference: bool = False

    @property
    def end(self) -> float:
        """Median at the right end."""
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
    start, unmarked = alone[0].end, DOT | {"markevery": slice(1, None)}
    dotted = {"linestyle": ":", "linewidth": 1.5, "zorder": 1}
    hollow = unmarked | {"markerfacecolor": "white", "linestyle": "--"}
    ceiling = _points(by_kind[Kind.NO_SYNC], start, dodge=1)
    ideal = pd.DataFrame({"processes": [1, top], "p50": [start, top * start]})
    ideal = ideal.reindex(columns=ceiling.columns)
    return [
        *alone,
        Series(strategy, _points(together, start, dodge=-1), BLUE, unmarked),
        Series("no communication", ceiling, GREEN, hollow),
        Series(f"ideal: {top} times one process", ideal, GRAY, dotted),
    ]


def _points(
    rows: pd.DataFrame, start: float | None = None, *, dodge: int = 0
) -> pd.DataFrame:
    """Return the points of arms, shifted sideways so that spreads do not overlap."""
    rows = rows.sort_values("processes").rename(columns=lambda n: n.split("_")[-1])
    aside = 0.012 * dodge * max(float(rows["processes"].max()) - 1, 0.5)
    points = rows[["processes", "p5", "p50", "p95"]].astype(float)
    points["processes"] += aside
    if start is None:
        return points
    return pd.concat([pd.DataFrame({"processes": [1.0], "p50": [start]}), points])


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
