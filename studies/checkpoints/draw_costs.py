"""Draw and tabulate the cost of checkpoints relative to training time."""

from pathlib import Path

from costs import Costs, load_costs

from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.canvas import BLUE, GRAY, canvas, save
from minitrain.report.numbers import ms, percent

STUDY = Path(__file__).resolve().parent


def main() -> None:
    costs = load_costs(STUDY)
    disk = read_json(STUDY / "disk.json")
    draw(costs)
    told = [measured_where(disk["provenance"])]
    told += [saves(costs, disk["mb_per_rank"]), reads(costs)]
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n\n".join(told) + "\n")


def share(ratio: float) -> float:
    # relative to the time without: a run at 0.98 of the speed takes 2 % longer
    return 1 / ratio - 1


def draw(costs: Costs) -> None:
    # the first is the default
    first = next(iter(costs.more))
    title = f"Waiting for checkpoints takes {percent(costs.waits[first])} of training"
    figure, axes = canvas(0.6 + 0.4 * len(costs.more), title, right=0.97, left=0.33)
    axes.axvspan(-100 * costs.noise_floor, 100 * costs.noise_floor, color="#eeeeee")
    for row, (name, found) in enumerate(costs.more.items()):
        low, high = 100 * share(found.high), 100 * share(found.low)
        axes.hlines(row, low, high, BLUE, linewidth=2)
        axes.plot(100 * share(found.ratio), row, "o", color=BLUE)
        axes.plot(100 * costs.waits[name], row, "|", color="black", markersize=14)
    axes.axvline(0, color=GRAY, linewidth=0.8)
    axes.set_yticks(range(len(costs.more)), [f"{name} steps" for name in costs.more])
    axes.set(ylim=(len(costs.more) - 0.5, -0.5))
    axes.set_xlabel(
        "% of training time (black stroke: time spent waiting for saves;\n"
        "blue: whole rounds against rounds without saves, 5-95 %; gray: noise floor)"
    )
    with atomic_path(STUDY / "checkpoints.png") as path:
        save(figure, path)


def saves(costs: Costs, disk: dict[str, float]) -> str:
    heads = "| checkpoints | one save | p95 | share | more time | 5-95 % | verdict |"
    lines = [f"{heads} on disk |", "|---" * 8 + "|"]
    for name, found in costs.more.items():
        took = costs.save_ms[name]
        cells = [f"{name} steps", ms(took.median()), ms(float(took.quantile(0.95)))]
        cells += [percent(costs.waits[name]), percent(share(found.ratio))]
        cells.append(f"{percent(share(found.high))} to {percent(share(found.low))}")
        cells += [found.verdict, f"{disk[name]:.1f} MB per rank"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reads(costs: Costs) -> str:
    lines = ["| to go on | median | largest |", "|---|---|---|"]
    for what, took in costs.read_ms.items():
        lines.append(f"| {what} | {ms(took.median())} | {ms(took.max())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_stage(main)
