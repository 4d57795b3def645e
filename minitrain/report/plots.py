"""The pictures of the step account and of the losses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from minitrain.report.account_words import PARTS
from minitrain.report.canvas import BLACK, BLUE, GREEN, ORANGE, PURPLE, canvas, save
from minitrain.report.numbers import ms

PART_COLORS = {
    "data_ms": "#999999",
    "wait_ms": "#F0E442",
    "forward_ms": "#56B4E9",
    "backward_compute_ms": BLUE,
    "interference_ms": "#E69F00",
    "comm_exposed_ms": ORANGE,
    "optimizer_ms": GREEN,
    "optimizer_comm_ms": PURPLE,
}
DARK_PARTS = ("backward_compute_ms", "comm_exposed_ms", "optimizer_ms")
RUN_COLORS = (BLUE, ORANGE, GREEN, PURPLE, BLACK)


def draw_account(
    accounts: Mapping[str, Mapping[str, Any]], title: str, path: Path
) -> None:
    """Draw one stacked bar per run, above its step time without instruments.

    ``accounts`` maps a run to its account in metrics/timing.json. A part below zero
    (interference is a difference) is hatched and drawn to the left of zero.
    """
    height = 0.7 + 0.85 * len(accounts)
    # room for the longest name, about a hundredth of the width for each letter
    left = max(0.1, 0.02 + 0.0105 * max(map(len, accounts), default=0))
    figure, axes = canvas(height, title, right=0.97, left=left, head=0.65)
    widest = max(map(_extent, accounts.values()), default=1.0)
    for row, account in enumerate(accounts.values()):
        _stack(axes, row, account, widest)
        plain = account["plain_step_ms"]
        axes.barh(row + 0.34, plain, height=0.1, color=BLACK)
        text = f"step without instruments: {ms(plain)}"
        if not account["closed"]:
            text += f"  (its parts add up to {ms(account['sum_ms'])}: too far apart)"
        axes.text(0.006 * widest, row + 0.5, text, va="center", fontsize=9.5)
    axes.set_yticks(range(len(accounts)), accounts)
    axes.set_ylim(len(accounts) - 0.3, -0.45)
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

    Later runs are drawn thinner, so that curves which coincide all stay visible.
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
