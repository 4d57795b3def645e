"""Labels at the right end of lines, moved apart where they would overlap."""

import math

from matplotlib.axes import Axes

from minitrain.report.pictures import spread


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
