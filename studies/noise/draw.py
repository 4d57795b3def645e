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
    said = []
    # all rounds give a single sample, too few for a rate
    last = sorted(together["rounds"].unique())[-2:][0]
    # both ends, or the only number of rounds
    for count in dict.fromkeys([last, together["rounds"].min()]):
        rows = together[together["rounds"] == count]
        floors = zip(rows["floor_p50"], rows["strategy"], strict=True)
        each = " and ".join(f"{percent(floor)} ({name})" for floor, name in floors)
        said.append(f"{each} after {count} rounds")
    most = together[together["rounds"] == last]
    rate = (most["alarms_apart"] * most["judged"]).sum() / most["judged"].sum()
    alarms = f"on average {percent(rate)} false alarms after {last}"
    return f"Noise floor: {', '.join(said)}; {alarms}"


def draw(together: pd.DataFrame) -> None:
    figure, axes = canvas(3.9, headline(together), right=0.97)
    names = list(together["strategy"].unique())
    counts = sorted(together["rounds"].unique())
    for row, (name, (color, shape)) in enumerate(zip(names, LOOKS, strict=False)):
        own = together[together["strategy"] == name].set_index("rounds").loc[counts]
        x = [at + 0.12 * (2 * row - len(names) + 1) for at in range(len(counts))]
        low, high = 100 * own["floor_p5"], 100 * own["floor_p95"]
        axes.vlines(x, low, high, color=color, linewidth=2)
        axes.plot(x, 100 * own["floor_p50"], shape, color=color, label=name)
    rates = together.set_index(["rounds", "strategy"])["alarms_apart"]
    each = [" | ".join(f"{100 * rates[n, name]:.1f}" for name in names) for n in counts]
    ticks = [f"{n}\n{alarms} %" for n, alarms in zip(counts, each, strict=True)]
    axes.set_xticks(range(len(counts)), ticks)
    axes.set_xlabel(f"rounds; below, false alarms ({' | '.join(names)})")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("noise floor (bars: 5-95 %)")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.legend(loc="upper right", frameon=False)
    # room for two lines of tick labels
    figure.subplots_adjust(bottom=0.8 / figure.get_figheight())
    with atomic_path(STUDY / "noise.png") as path:
        save(figure, path)


if __name__ == "__main__":
    run_stage(main)
