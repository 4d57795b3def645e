"""Common style of the charts: size, colors, title, and reproducible bytes.

A chart is a PNG file 1280 pixels wide, designed for display at 800. Colors are from the
color-blind safe palette of Okabe and Ito.
"""

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_IN, DPI = 8.0, 160
GRAY, BLACK = "#777777", "#222222"
BLUE, GREEN, ORANGE, PURPLE = "#0072B2", "#009E73", "#D55E00", "#CC79A7"


def canvas(
    height: float, title: str, *, right: float, left: float = 0.12, head: float = 0.12
) -> tuple[Figure, Axes]:
    """Return an empty chart: ``height`` inches for the axes and their labels, and
    ``head`` inches above them. The axes extend from ``left`` to ``right`` (0 to 1).
    """
    # a number stays with its unit
    title = "\n".join(textwrap.wrap(title.replace(" %", "\u00a0%"), 72))
    head += 0.1 + 0.22 * (1 + title.count("\n"))
    figure = Figure(figsize=(WIDTH_IN, height + head), dpi=DPI)
    total = height + head
    figure.text(
        0.02, 1 - 0.1 / total, title, va="top", fontsize=12.5, fontweight="bold"
    )
    axes = figure.add_subplot()
    figure.subplots_adjust(
        left=left, right=right, bottom=0.62 / total, top=1 - head / total
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` as a PNG whose bytes depend only on its content."""
    # omit the version of matplotlib, the only metadata that varies
    figure.savefig(path, format="png", metadata={"Software": None})
