"""Draw the matrix of bugs and checks, and loss curves with and without bugs."""

from pathlib import Path
from typing import Any

import numpy as np
from loss_curves import draw_losses, words
from matplotlib.patches import Rectangle
from zoo_digest import digest

from minitrain.core.errors import run_stage
from minitrain.core.files import read_json, write_json
from minitrain.report.canvas import BLUE, canvas, save
from minitrain.report.checks import RUNGS

STUDY = Path(__file__).resolve().parent
COLORS = {"breach": BLUE, "not run": "white"}


def main() -> None:
    result = read_json(STUDY / "zoo.json")
    draw_matrix(result)
    draw_losses(result, STUDY / "losses.png")
    # Written for the pipeline's report, but not an output of this stage, or else `dvc
    # repro` of the pipeline would run the study.
    write_json(STUDY.parents[1] / "metrics/zoo.json", digest(result))


def draw_matrix(result: dict[str, Any]) -> None:
    bugs = result["bugs"]
    # in the order of the report, without checks that no bug reaches
    reached = {check for bug in bugs.values() for check in bug["verdicts"]}
    checks = [check for check in RUNGS if check in reached]
    met = sum(bug["verdicts"][bug["check"]] == "breach" for bug in bugs.values())
    alarms = sum(bool(run["breaches"]) for run in result["clean"])
    title = f"{met} of {len(bugs)} bugs are caught by their check; "
    title += f"{alarms} alarms in {len(result['clean'])} clean runs"
    figure, axes = canvas(6.2, title, right=0.98, left=0.28, head=0.4)
    for y, bug in enumerate(bugs.values()):
        for x, check in enumerate(checks):
            color = COLORS.get(bug["verdicts"].get(check, "not run"), "#e4e4e4")
            axes.add_patch(Rectangle((x + 0.06, y + 0.08), 0.88, 0.84, color=color))
            if check == bug["check"]:
                axes.plot(x + 0.5, y + 0.5, "o", color="white", markersize=7)
    axes.set(xlim=(0, len(checks)), ylim=(len(bugs), 0))
    at = np.arange(len(checks)) + 0.5
    axes.set_xticks(at, [*map(words, checks)], rotation=45, fontsize=8)
    axes.tick_params(axis="x", pad=2)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(np.arange(len(bugs)) + 0.5, [*map(words, bugs)], fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.subplots_adjust(bottom=0.185)
    told = "blue: caught; gray: passed; blank: not run; dot: the check meant for it"
    axes.set_title(told, loc="left", size=9)
    save(figure, STUDY / "matrix.png")


if __name__ == "__main__":
    run_stage(main)
