"""Loss curves of clean runs, and of runs with a bug."""

from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from zoo_digest import LossCurve, loss_curve

from minitrain.report.canvas import BLUE, DPI, ORANGE, WIDTH_IN, save

# bugs whose loss curves are drawn: three that only checks reveal, and one that shows
SHOWN = ("sum_for_mean", "mean_of_means", "missing_last_sync", "learning_rate_divided")
words = methodcaller("replace", "_", " ")


def draw_losses(result: dict[str, Any], path: Path) -> None:
    bugs, losses = result["bugs"], result["clean_losses"]
    hidden = {
        name
        for name, bug in bugs.items()
        if loss_curve(bug["losses"], losses[bug["model"]]) == LossCurve.HIDDEN
    }
    figure = Figure(figsize=(WIDTH_IN, 5.4), dpi=DPI, layout="constrained")
    grid = figure.subplots(2, 2, sharex=True)
    shown = [name for name in SHOWN if name in bugs]
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    for axes, name in zip(grid.flat, shown, strict=False):
        clean = np.array(losses[bugs[name]["model"]])
        low, high = clean.min(0), clean.max(0)
        axes.fill_between(
            range(len(low)), low, high, color="#cccccc", label="clean, other seeds"
        )
        axes.plot(clean[0], color=BLUE, linewidth=2.6, label="clean, same seed")
        axes.plot(bugs[name]["losses"], color=ORANGE, linewidth=1.1, label="with bug")
        seen = "hidden" if name in hidden else "visible"
        axes.set_title(f"{words(name)}: {seen}", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("loss (nats per token)", fontsize=9)
    grid[0, 0].legend(frameon=False, fontsize=8, loc="upper right")
    title = f"{len(hidden)} of {len(bugs)} bugs move the loss less than another seed"
    figure.suptitle(title, x=0.02, ha="left", fontsize=12.5, fontweight="bold")
    save(figure, path)
