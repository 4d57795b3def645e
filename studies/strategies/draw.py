"""Draw and tabulate speed and step account of all strategies."""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Comparison, Rounds
from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, open_atomic, read_json
from minitrain.core.provenance import measured_where, require_one_machine
from minitrain.report.canvas import BLUE, ORANGE, canvas, save
from minitrain.report.numbers import ms
from minitrain.report.pictures import draw_account

STUDY = Path(__file__).resolve().parent
CEILING, STOCK, AGAIN = "no communication", "ddp", "ddp again"
COLUMNS = ("strategy", "of the ceiling", "times ddp", "verdict on times ddp")


def main() -> None:
    rows = pd.read_csv(STUDY / "rounds.csv")
    measured = read_json(STUDY / "runs.json")
    where = read_json(STUDY / "machine.json")
    require_one_machine({"runs.json": measured, "machine.json": where})
    runs = {name: run["account"] for name, run in measured["runs"].items()}
    every = list(rows["arm"].unique())
    speeds = {
        size: Rounds(of_size, every, [(AGAIN, STOCK)], f"rounds.csv, {size}")
        for size in rows["global_batch_size"].unique()
        for of_size in [rows[rows["global_batch_size"] == size]]
    }
    arms = [arm for arm in every if arm != CEILING]
    draw_speed(speeds, arms, list(runs))
    order = sorted(runs, key=lambda name: runs[name]["step_ms"])
    names = dict.fromkeys((order[0], STOCK, order[-1]))
    each = [f"{ms(runs[name]['step_ms'])} with {name}" for name in names]
    with atomic_path(STUDY / "account.png") as path:
        draw_account(runs, f"A step takes {', '.join(each)}", path)
    with open_atomic(STUDY / "table.md") as file:
        file.write(f"{measured_where(where)}\n\n{table(speeds, arms)}")


def draw_speed(
    speeds: dict[int, Rounds], arms: list[str], strategies: list[str]
) -> None:
    large, small = speeds
    best = max(strategies, key=lambda name: speeds[large].compare(name, CEILING).ratio)
    share = speeds[large].compare(best, CEILING).ratio
    stock = speeds[large].compare(STOCK, CEILING).ratio
    title = (
        f"Of the speed without communication, {best} reaches {100 * share:.0f} % at "
        f"batch {large}, {STOCK} {100 * stock:.0f} %"
    )
    arms = sorted(arms, key=lambda arm: -speeds[large].compare(arm, CEILING).ratio)
    figure, axes = canvas(0.32 * len(arms), title, right=0.97, left=0.4, head=0.4)
    for offset, size, color in ((-0.15, large, BLUE), (0.15, small, ORANGE)):
        for row, arm in enumerate(arms):
            found = speeds[size].compare(arm, CEILING)
            label = f"global batch {size}" if row == 0 else None
            axes.hlines(row + offset, found.low, found.high, color, linewidth=2)
            axes.plot(found.ratio, row + offset, "o", color=color, label=label)
    axes.axvline(1, color="#777777", linewidth=0.8)
    shown = [arm.replace(AGAIN, f"{STOCK}, A/A duplicate") for arm in arms]
    axes.set_yticks(range(len(arms)), shown)
    axes.set(ylim=(len(arms) - 0.5, -0.5), xlim=(0, None))
    axes.set_xlabel("share of the speed without communication (5-95 % interval)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    save(figure, STUDY / "speed.png")


def table(speeds: dict[int, Rounds], arms: list[str]) -> str:
    lines = []
    for size, rounds in speeds.items():
        floor = f"noise floor {100 * rounds.noise_floor():.1f} %"
        lines.append(f"Global batch {size}: {rounds.num_rounds} rounds, {floor}.")
        lines += ["", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        for arm in arms:
            of_ceiling, of_ddp = (rounds.compare(arm, x) for x in (CEILING, STOCK))
            cells = [f"`{arm}`", interval(of_ceiling), interval(of_ddp), of_ddp.verdict]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def interval(found: Comparison) -> str:
    return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"


if __name__ == "__main__":
    run_stage(main)
