"""Draw the speed of DDP over bucket sizes, with and without overlap."""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Rounds, SpeedVerdict
from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, read_json
from minitrain.report.canvas import BLACK, BLUE, GRAY, GREEN, ORANGE, canvas, save
from minitrain.report.numbers import percent, plural

STUDY = Path(__file__).resolve().parent
DEFAULT, CEILING = "torch's default", "no communication"
STOCK, AGAIN = f"ddp, {DEFAULT}", "ddp again"
# style and legend of each series
SERIES = {
    "ddp": (BLUE, "o", "DDP itself"),
    "watched": (GREEN, "s", "with a hook"),
    "no overlap": (ORANGE, "D", "with a hook, no overlap"),
}


def main() -> None:
    rows = pd.read_csv(STUDY / "rounds.csv")
    num_bytes = read_json(STUDY / "buckets.json")["num_bytes"]
    rounds = Rounds(rows, list(rows["arm"].unique()), [(STOCK, AGAIN)], "rounds.csv")
    buckets = {cap: len(sizes) for cap, sizes in num_bytes.items()}
    draw(rounds, buckets)


def headline(rounds: Rounds, caps: list[str]) -> str:
    found = [rounds.compare(f"ddp, {c}", STOCK) for c in caps if c != DEFAULT]
    slower = [one for one in found if one.verdict == SpeedVerdict.SLOWER]
    faster = sum(one.verdict == SpeedVerdict.FASTER for one in found)
    worst = min((one.ratio for one in slower), default=1.0)
    how_much = f" (by up to {percent(1 - worst)})" if slower else ""
    sizes = plural(len(found), "other bucket size")
    return (
        f"Slower than {DEFAULT}: {len(slower) or 'none'} of {sizes}{how_much}; "
        f"faster: {faster or 'none'}"
    )


def draw(rounds: Rounds, buckets: dict[str, int]) -> None:
    figure, axes = canvas(4.1, headline(rounds, [*buckets]), right=0.97, head=0.6)
    floor = 1 + rounds.noise_floor()
    axes.axhspan(1 / floor, floor, color="#e4e4e4", linewidth=0, label="noise floor")
    ceiling = rounds.compare(CEILING, STOCK).ratio
    axes.axhline(ceiling, color=GRAY, linestyle="--", label=CEILING)
    axes.axhline(1, color=BLACK, linewidth=0.8)
    for shift, (series, (color, shape, name)) in enumerate(SERIES.items(), -1):
        for x, cap in enumerate(buckets):
            arm, known, inside = f"{series}, {cap}", "" if x else name, color
            # relative to itself it would be 1, so show its A/A duplicate
            if arm == STOCK:
                arm, known, inside = AGAIN, "the default, A/A duplicate", "white"
            one, at = rounds.compare(arm, STOCK), x + 0.2 * shift
            axes.vlines(at, one.low, one.high, color=color, linewidth=2)
            axes.plot(at, one.ratio, shape, color=color, label=known, mfc=inside)
    counts = [f"{cap}\n{plural(n, 'bucket')}" for cap, n in buckets.items()]
    axes.set_xticks(range(len(buckets)), counts)
    axes.set_ylabel(f"speed relative to {DEFAULT}\n(bars: 5-95 % interval)")
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=3, frameon=False, fontsize=9
    )
    with atomic_path(STUDY / "buckets.png") as path:
        save(figure, path)


if __name__ == "__main__":
    run_stage(main)
