"""Draw time against message size."""

from pathlib import Path
from typing import Any

import pandas as pd
from end_labels import label_ends
from findings import NAMES, against_gloo, duration, size
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from minitrain.core.errors import run_stage
from minitrain.report.canvas import BLUE, GRAY, GREEN, ORANGE, canvas, save

STUDY = Path(__file__).resolve().parent
COLORS = {"gloo": ORANGE, "shm": BLUE, "nccl": GREEN, "copy": GRAY}
STYLES = ("-", "--", ":", "-.")


def main() -> None:
    table = pd.read_csv(STUDY / "collectives.csv")
    world_sizes = sorted(table["world_size"].unique())
    title = against_gloo(table, world_sizes[0])
    figure, axes = canvas(4.8, title, right=0.71, left=0.11, head=0.4)
    # powers of two only; other sizes are too close to them in the plot
    powers = table[table["num_bytes"].map(lambda one: one.bit_count() == 1)]
    ends = {}
    by_line: Any = powers.groupby(["backend", "world_size"])
    for (name, world_size), rows in by_line:
        color, x = COLORS[name], rows["num_bytes"]
        style = STYLES[world_sizes.index(world_size) % len(STYLES)]
        axes.plot(x, rows["p50_us"], style, color=color, linewidth=2)
        if world_size == world_sizes[0]:
            low, high = rows["p5_us"], rows["p95_us"]
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        ends[f"{NAMES[name]}, {world_size}"] = rows["p50_us"].iloc[-1], color
    scale(axes, sorted(powers["num_bytes"].unique()))
    label_ends(axes, ends, 0.07)
    note = f"number: processes; line: median; band: 5-95 % ({world_sizes[0]} processes)"
    axes.set_title(note, loc="left", size=9, color=GRAY)
    save(figure, STUDY / "collectives.png")


def scale(axes: Axes, sizes: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]))
    axes.set_xticks(sizes[::2], [size(one) for one in sizes[::2]], fontsize=9)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda us, _: duration(us).replace(".0 ", " "))
    )
    axes.set_xlabel("size of the tensor (float32)")
    axes.set_ylabel("time until the slowest process is done")
    axes.grid(color="#E6E6E6", linewidth=0.8)


if __name__ == "__main__":
    run_stage(main)
