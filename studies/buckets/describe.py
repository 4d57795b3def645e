"""Write a table of bucket layouts and speeds for each setting."""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Rounds
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import percent

STUDY = Path(__file__).resolve().parent
DEFAULT, CEILING = "torch's default", "no communication"
STOCK, AGAIN = f"ddp, {DEFAULT}", "ddp again"


def main() -> None:
    measured = read_json(STUDY / "buckets.json")
    num_bytes = measured["num_bytes"]
    rows = pd.read_csv(STUDY / "rounds.csv")
    rounds = Rounds(rows, list(rows["arm"].unique()), [(STOCK, AGAIN)], "rounds.csv")
    floor = percent(rounds.noise_floor())
    where = (
        f"{measured_where(measured)} {rounds.num_rounds} rounds, noise floor {floor}."
    )
    lines = [*layout(num_bytes), "", where, "", *speeds(rounds, [*num_bytes]), ""]
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n".join(lines))


def layout(num_bytes: dict[str, list[int]]) -> list[str]:
    head = "| bucket cap | buckets | bytes of each, in the order handed over |"
    lines = [head, "|---" * 3 + "|"]
    for cap, sizes in num_bytes.items():
        each = " ".join(f"{size:,}" for size in sizes)
        lines.append(f"| {cap} | {len(sizes)} | {each} |")
    return lines


def speeds(rounds: Rounds, caps: list[str]) -> list[str]:
    # Each line differs from its reference in one setting.
    pairs = [(CEILING, STOCK), (AGAIN, STOCK)]
    pairs += [(f"ddp, {cap}", STOCK) for cap in caps if cap != DEFAULT]
    pairs += [(f"watched, {cap}", f"ddp, {cap}") for cap in caps]
    pairs += [(f"no overlap, {cap}", f"watched, {cap}") for cap in caps]
    head = "| speed of | relative to | ratio | 5-95 % | verdict |"
    lines = [head, "|---" * 5 + "|"]
    for one in [rounds.compare(*pair) for pair in pairs]:
        ratio = f"{one.ratio:.3f} | {one.low:.3f} to {one.high:.3f}"
        lines.append(f"| {one.arm_a} | {one.arm_b} | {ratio} | {one.verdict} |")
    return lines


if __name__ == "__main__":
    run_stage(main)
