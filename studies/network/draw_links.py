"""Draw the speed of every arm over each link."""

from pathlib import Path

from arms import ARMS, FOUR, HIERARCHICAL, ONE_HOST
from speeds import Speeds, named, read

from minitrain.analysis.busy import why_busy
from minitrain.core.errors import run_stage
from minitrain.core.files import read_json
from minitrain.report.canvas import BLACK, BLUE, GREEN, ORANGE, PURPLE, canvas, save
from minitrain.report.numbers import plural

STUDY = Path(__file__).resolve().parent
COLORS = (BLACK, BLUE, GREEN, ORANGE, PURPLE)
BETWEEN = 0.2


def main() -> None:
    speeds = read()
    busy = why_busy(read_json(STUDY / "machine.json")["load"], speeds.spread())
    said = title(speeds, busy)
    figure, axes = canvas(0.42 * len(ARMS), said, right=0.97, left=0.31, head=0.4)
    slowest = min(speeds.links, key=lambda link: speeds.median(named("ddp"), link))
    local = [arm for arm in ARMS if not arm.goes_over(slowest)]
    between = [arm for arm in ARMS if arm.goes_over(slowest)]
    # by speed over the slowest link, below what runs on one host
    arms = local + sorted(between, key=lambda arm: -speeds.median(arm, slowest))
    middle = (len(speeds.links) - 1) / 2
    colors = dict(zip((ONE_HOST, *speeds.links), COLORS, strict=False))
    for number, (link, color) in enumerate(colors.items()):
        off = BETWEEN * (number - 1 - middle) if number else 0
        over = [(row, arm) for row, arm in enumerate(arms) if arm.goes_over(link)]
        for row, arm in over:
            found = speeds.of(arm, link)
            axes.hlines(row + off, found.min(), found.max(), color, linewidth=2)
            label = link if (row, arm) == over[0] else None
            axes.plot(found.median(), row + off, "o", color=color, label=label)
    shown = [arm.name.replace("again", "A/A duplicate") for arm in arms]
    axes.set_yticks(range(len(arms)), shown)
    axes.set(ylim=(len(ARMS) - 0.5, -0.5), xlim=(0, None))
    axes.set_xlabel("tokens per second, all ranks together (median, least and most)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    save(figure, STUDY / "network.png")


def title(speeds: Speeds, busy: str | None) -> str:
    if busy:
        what = f"Speeds over {plural(len(speeds.links), 'link')}"
        return f"{what}: not judged, since the machine was busy ({busy})"
    stock, floor = named("ddp"), speeds.noise_floor()
    fastest = speeds.links[0]
    slowest = min(speeds.links, key=lambda link: speeds.median(stock, link))
    kept = speeds.ratio(stock, stock, slowest, over=fastest)
    gain = speeds.ratio(named(HIERARCHICAL), named(FOUR), slowest)
    share = f"{100 * kept.median:.0f} %"
    said = f"Over {slowest} stock DDP keeps {share} of its {fastest} speed"
    if not kept.differs(floor):
        said = f"Stock DDP: no difference seen between {slowest} and {fastest}"
    made = f"makes it {gain.median:.2f} times as fast"
    if not gain.differs(floor):
        made = "makes no difference that is seen"
    return f"{said}; adding inside a host first {made}"


if __name__ == "__main__":
    run_stage(main)
