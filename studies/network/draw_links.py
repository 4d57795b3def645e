"""Draw the speed of every arm over each link."""

from pathlib import Path

from arms import ARMS, ONE_HOST
from speeds import Speeds, named, read

from minitrain.core.errors import run_stage
from minitrain.report.canvas import BLACK, BLUE, GREEN, ORANGE, PURPLE, canvas, save

STUDY = Path(__file__).resolve().parent
COLORS = (BLACK, BLUE, GREEN, ORANGE, PURPLE)
BETWEEN = 0.2


def main() -> None:
    speeds = read()
    figure, axes = canvas(
        0.42 * len(ARMS), title(speeds), right=0.97, left=0.27, head=0.4
    )
    middle = (len(speeds.links) - 1) / 2
    colors = dict(zip((ONE_HOST, *speeds.links), COLORS, strict=False))
    for number, (link, color) in enumerate(colors.items()):
        off = BETWEEN * (number - 1 - middle) if number else 0
        over = [(row, arm) for row, arm in enumerate(ARMS) if arm.goes_over(link)]
        for row, arm in over:
            found = speeds.of(arm, link)
            axes.hlines(row + off, found.min(), found.max(), color, linewidth=2)
            label = link if (row, arm) == over[0] else None
            axes.plot(found.median(), row + off, "o", color=color, label=label)
    axes.set_yticks(range(len(ARMS)), [arm.name for arm in ARMS])
    axes.set(ylim=(len(ARMS) - 0.5, -0.5), xlim=(0, None))
    axes.set_xlabel("tokens per second, all ranks together (median, least and most)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    save(figure, STUDY / "network.png")


def title(speeds: Speeds) -> str:
    slowest = min(speeds.links, key=lambda link: speeds.median(named("ddp"), link))
    inside, flat = named("hierarchical, 2 hosts x 2"), named("ddp, 2 hosts x 2")
    ratio = speeds.ratio(inside, flat, slowest).median
    kept = speeds.median(named("ddp"), slowest) / speeds.median(
        named("ddp"), speeds.links[0]
    )
    return (
        f"Over {slowest} stock DDP keeps {100 * kept:.0f} % of its {speeds.links[0]} "
        f"speed; adding inside a host first makes it {ratio:.2f} times as fast"
    )


if __name__ == "__main__":
    run_stage(main)
