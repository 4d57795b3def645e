"""Draw noise floor and false alarms over the number of rounds."""

from pathlib import Path

import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator

from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path
from minitrain.report.canvas import BLUE, GREEN, ORANGE, PURPLE, canvas, save
from minitrain.report.numbers import percent

STUDY = Path(__file__).resolve().parent
# color and marker of each strategy, in the study's order
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D"), (PURPLE, "^"))


def main() -> None:
    found = pd.read_csv(STUDY / "noise.csv")
    draw(found[found["pair"] == "all"])


def headline(together: pd.DataFrame) -> str:
    # all rounds give a single sample, too few for a rate
    last = sorted(together["rounds"].unique())[-2:][0]
    rows = together[together["rounds"] == last]
    floors = zip(rows["floor_p50"], rows["strategy"], strict=True)
    each = ", ".join(f"{percent(floor)} ({name})" for floor, name in floors)
    return f"Noise floor after {last} rounds: {each}"


def draw(together: pd.DataFrame) -> None:
    figure, axes = canvas(5.4, headline(together), right=0.97)
    names = list(together["strategy"].unique())
    counts = sorted(together["rounds"].unique())
    box = axes.get_position()
    x0, y0, width, height = box.bounds
    axes.set_position((x0, y0 + 0.42 * height, width, 0.58 * height))
    below = figure.add_axes((x0, y0, width, 0.3 * height))
    for row, (name, (color, shape)) in enumerate(zip(names, LOOKS, strict=False)):
        own = together[together["strategy"] == name].set_index("rounds").loc[counts]
        x = [at + 0.12 * (2 * row - len(names) + 1) for at in range(len(counts))]
        low, high = 100 * own["floor_p5"], 100 * own["floor_p95"]
        axes.vlines(x, low, high, color=color, linewidth=2)
        axes.plot(x, 100 * own["floor_p50"], shape, color=color, label=name)
        below.bar(x, 100 * own["alarms_apart"], width=0.2, color=color)
        for at, rate, judged in zip(x, own["alarms_apart"], own["judged"], strict=True):
            said = f"{100 * rate:.1f} %\nof {judged}"
            below.annotate(said, (at, 100 * rate), ha="center", va="bottom", fontsize=7)
    for one in (axes, below):
        one.set_xticks(range(len(counts)), [str(count) for count in counts])
        one.spines[["top", "right"]].set_visible(False)
    below.set_ylim(0, 1.8 * 100 * together["alarms_apart"].max() + 1)
    below.set_xlabel("rounds")
    below.set_ylabel("false alarms,\n% of pairs")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("noise floor (bars: 5-95 %)")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.legend(loc="upper right", frameon=False)
    with atomic_path(STUDY / "noise.png") as path:
        save(figure, path)


if __name__ == "__main__":
    run_stage(main)
