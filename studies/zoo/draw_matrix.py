"""Draw the matrix of bugs and checks, and loss curves with and without each bug."""

from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from zoo_digest import LossCurve, digest, loss_curve

from minitrain.core.errors import run_stage
from minitrain.core.files import read_json, write_json
from minitrain.report.canvas import BLUE, DPI, ORANGE, WIDTH_IN, canvas, save

STUDY = Path(__file__).resolve().parent
COLORS = {"breach": BLUE, "not run": "white"}
words = methodcaller("replace", "_", " ")


def main() -> None:
    result = read_json(STUDY / "zoo.json")
    draw_matrix(result)
    draw_losses(result)
    # Written for the pipeline's report, but not an output of this stage, or else `dvc
    # repro` of the pipeline would run the study.
    write_json(STUDY.parents[1] / "metrics/zoo.json", digest(result))


def draw_matrix(result: dict[str, Any]) -> None:
    bugs = result["bugs"]
    # a bug that breaks a rung can skip the rungs above it
    most = sorted(bugs.values(), key=lambda bug: -len(bug["verdicts"]))
    checks = list(dict.fromkeys(check for bug in most for check in bug["verdicts"]))
    met = sum(bug["verdicts"][bug["check"]] == "breach" for bug in bugs.values())
    alarms = sum(bool(run["breaches"]) for run in result["clean"])
    title = f"{met} of {len(bugs)} bugs are caught by the check that is meant to; "
    title += f"{alarms} of {len(result['clean'])} clean runs raise an alarm"
    figure, axes = canvas(6.6, title, right=0.98, left=0.28, head=0.45)
    for y, bug in enumerate(bugs.values()):
        for x, check in enumerate(checks):
            color = COLORS.get(bug["verdicts"].get(check, "not run"), "#e4e4e4")
            axes.add_patch(Rectangle((x + 0.06, y + 0.08), 0.88, 0.84, color=color))
            if check == bug["check"]:
                axes.plot(x + 0.5, y + 0.5, "o", color="white", markersize=7)
    axes.set(xlim=(0, len(checks)), ylim=(len(bugs), 0))
    at = np.arange(len(checks)) + 0.5
    axes.set_xticks(at, [*map(words, checks)], rotation=40, ha="right", fontsize=8)
    axes.set_yticks(np.arange(len(bugs)) + 0.5, [*map(words, bugs)], fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.subplots_adjust(bottom=0.2)
    told = "blue: caught; gray: passed; blank: not run; dot: meant to catch it"
    axes.set_title(told, loc="left", size=9)
    save(figure, STUDY / "matrix.png")


def draw_losses(result: dict[str, Any]) -> None:
    bugs = result["bugs"]
    figure = Figure(figsize=(WIDTH_IN, 8.4), dpi=DPI, layout="constrained")
    grid = figure.subplots(-(-len(bugs) // 4), 4)
    for axes in grid.flat[len(bugs) :]:
        axes.remove()
    unseen = []
    for axes, (name, bug) in zip(grid.flat, bugs.items(), strict=False):
        clean = np.array(result["clean_losses"][bug["model"]])
        mine, steps = np.array(bug["losses"]), clean.shape[1]
        stops = len(mine) < steps
        looks = loss_curve(bug["losses"], result["clean_losses"][bug["model"]])
        unseen += [name] if looks == LossCurve.HIDDEN else []
        axes.fill_between(range(steps), clean.min(0), clean.max(0), color="#bbbbbb")
        axes.plot(clean[0], color=BLUE, linewidth=2.6)
        axes.plot(mine, "." if stops else "-", color=ORANGE, linewidth=1.1)
        shown = "hidden" if name in unseen else "shows"
        shown = f"error after step {len(mine) - 1}" if stops else shown
        axes.set_title(f"{words(name)}:\n{shown}", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("loss (nats per token)", fontsize=9)
    title = f"{len(unseen)} of {len(bugs)} bugs move the loss less than another seed\n"
    title += "(blue: clean, orange: with the bug, gray: clean runs of all seeds)"
    figure.suptitle(title, fontsize=11, fontweight="bold")
    save(figure, STUDY / "losses.png")


if __name__ == "__main__":
    run_stage(main)
