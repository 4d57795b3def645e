"""Labels at the right end of lines, moved apart where they would overlap."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes


def label_ends(axes: Axes, ends: dict[str, tuple[float, str]], gap: float) -> None:
    """Label lines by name next to their last point, with a y coordinate and a color;
    ``gap`` is the smallest distance of two labels as a share of the axes' height.
    """
    as_shown = math.log if axes.get_yscale() == "log" else float
    low, high = map(as_shown, axes.get_ylim())
    names = sorted(ends, key=lambda name: ends[name][0])
    heights = [(as_shown(ends[name][0]) - low) / (high - low) for name in names]
    # not below the axes
    heights = [max(height, row * gap) for row, height in enumerate(heights)]
    for name, y, height in zip(names, heights, spread(heights, gap), strict=True):
        axes.annotate(
            name,
            xy=(1, y),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=ends[name][1],
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": ends[name][1], "relpos": (0, 0.5)},
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
