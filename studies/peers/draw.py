"""Draw and tabulate the speed of each arm relative to the raw DDP loop."""

from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.analysis.comparison import Comparison, Rounds
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.report.canvas import BLACK, BLUE, GRAY, canvas, save

STUDY = Path(__file__).resolve().parent
RAW, AGAIN, OWN = "raw DDP loop", "raw DDP loop again", "minitrain, ddp"
HEADING: Any = {"ha": "right", "va": "center", "fontsize": 9, "fontweight": "bold"}
HEAD = (
    "arm | tokens per second | against the raw DDP loop | 5-95 % | verdict | same bits"
)


def main() -> None:
    rounds, proof = pd.read_csv(STUDY / "rounds.csv"), read_json(STUDY / "proof.json")
    found = {
        int(str(size)): compare(table)
        for size, table in rounds.groupby("global_batch_size", sort=False)
    }
    draw(found)
    blocks = [block(size, arms, proof) for size, arms in found.items()]
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n".join(blocks))


def compare(table: pd.DataFrame) -> list[Comparison]:
    arms = table.sort_values("round", kind="stable")["arm"].drop_duplicates().tolist()
    rounds = Rounds(table, arms, [(RAW, AGAIN)], "rounds.csv")
    return [rounds.compare(arm, RAW) for arm in arms]


def block(size: int, found: list[Comparison], proof: dict[str, Any]) -> str:
    floor, count = found[0].noise_floor, found[0].num_rounds
    states = proof["states_sha256_of_ranks"][str(size)]
    lines = [f"Global batch {size}; {count} rounds, noise floor {100 * floor:.1f} %:"]
    lines += ["", f"| {HEAD} |", "|---|---|---|---|---|---|"]
    for one in found:
        measured = f"{one.ratio:.3f} | {one.low:.3f} to {one.high:.3f} | {one.verdict}"
        measured = "1 | - | -" if one.arm_a == RAW else measured
        same = "yes" if {*states[one.arm_a]} == {states[RAW][0]} else "no"
        lines.append(
            f"| {one.arm_a} | {one.tokens_per_s_a:,.0f} | {measured} | {same} |"
        )
    return "\n".join(lines) + "\n"


def draw(found: dict[int, list[Comparison]]) -> None:
    sizes: dict[str, list[str]] = {}
    for size, arms in found.items():
        own = next(one for one in arms if one.arm_a == OWN)
        sizes.setdefault(own.verdict, []).append(str(size))
    said = [f"{verdict} at batch {' and '.join(of)}" for verdict, of in sizes.items()]
    rows = sum(len(arms) for arms in found.values())
    title = f"minitrain's loop against a raw DDP loop: {', '.join(said)}"
    figure, axes = canvas(0.3 * rows + 0.7, title, right=0.97, left=0.29)
    y, names = 0, {}
    for size, arms in found.items():
        floor = 1 + arms[0].noise_floor
        top, heading = y, f"global batch {size}"
        axes.text(-0.02, y, heading, **HEADING, transform=axes.get_yaxis_transform())
        for one in sorted(arms, key=lambda one: -one.ratio):
            if one.arm_a == RAW:
                # the reference, at 1
                continue
            y += 1
            names[y] = one.arm_a.replace(AGAIN, f"{RAW}, A/A duplicate")
            seen = BLUE if one.verdict != "no difference seen" else GRAY
            axes.plot([one.low, one.high], [y, y], color=seen, linewidth=2)
            axes.plot(one.ratio, y, "o", color=seen, markersize=6)
        axes.fill_betweenx([top + 0.4, y + 0.4], 1 / floor, floor, color="#e4e4e4")
        axes.plot([1, 1], [top + 0.4, y + 0.4], color=BLACK, linewidth=0.8)
        y += 1
    axes.set_yticks(list(names), list(names.values()), fontsize=9)
    axes.set_ylim(y - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    label = "speed relative to the raw DDP loop (gray band: noise floor; bars: 5-95 %)"
    axes.set_xlabel(label, fontsize=9)
    save(figure, STUDY / "peers.png")


if __name__ == "__main__":
    run_stage(main)
