"""Draw the relative duration of a step with the recorder."""

import pandas as pd
from recorder_rows import BY_STEP, RAW, STUDY, read_rows, rounds_of

from minitrain.analysis.comparison import Comparison
from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path
from minitrain.report.canvas import BLACK, BLUE, GRAY, canvas, save
from minitrain.report.numbers import percent


def main() -> None:
    rows, steps = read_rows()
    draw(found_in(rows) | found_in(steps, BY_STEP))


def found_in(rows: pd.DataFrame, how: str = "") -> dict[str, Comparison]:
    rounds = rounds_of(rows)
    arms = [arm for arm in rows["arm"].unique() if arm != RAW]
    # relative duration of the arm: the raw loop's speed over the arm's
    return {arm + how: rounds.compare(RAW, arm) for arm in arms}


def headline(found: dict[str, Comparison]) -> str:
    name = next(arm for arm in found if arm.startswith("recorded every"))
    one = found[name]
    floor = f"noise floor {percent(one.noise_floor)}"
    if one.verdict == "no difference seen":
        return f"Time of a step, {name}: no difference seen ({floor})"
    longer = percent(abs(one.ratio - 1))
    word = "longer" if one.ratio > 1 else "shorter"
    return f"A step, {name}, takes {longer} {word} than without ({floor})"


def draw(found: dict[str, Comparison]) -> None:
    title = headline(found)
    figure, axes = canvas(0.42 * len(found) + 0.7, title, right=0.97, left=0.34)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    for y, one in enumerate(found.values()):
        floor = 100 * one.noise_floor
        axes.barh(y, 2 * floor, height=1, left=-floor, color="#e4e4e4", zorder=0)
        color = BLUE if one.verdict != "no difference seen" else GRAY
        low, middle, high = (100 * (r - 1) for r in (one.low, one.ratio, one.high))
        axes.plot([low, high], [y, y], color=color, linewidth=2)
        axes.plot(middle, y, "o", color=color, markersize=6)
    axes.set_yticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    label = "% longer than the raw DDP loop (gray band: noise floor; bars: 5-95 %)"
    axes.set_xlabel(label, fontsize=9)
    with atomic_path(STUDY / "recorder.png") as path:
        save(figure, path)


if __name__ == "__main__":
    run_stage(main)
