"""Write noise floors and false alarms as a table."""

from pathlib import Path

import pandas as pd

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import percent

STUDY = Path(__file__).resolve().parent
COLUMNS = (
    "strategy",
    "rounds",
    "noise floor",
    "5-95 %",
    "interval without 1",
    "false alarms",
    "of single pairs",
    "where the floor shares an arm",
    "comparisons",
)


def main() -> None:
    found = pd.read_csv(STUDY / "noise.csv")
    where = measured_where(read_json(STUDY / "machine.json"))
    lines = [where, "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for (name, count), rows in found.groupby(["strategy", "rounds"], sort=False):
        own = rows[rows["pair"] == "all"].iloc[0]
        pairs = rows.loc[rows["pair"] != "all", "alarms_apart"]
        cells = [
            f"`{name}`",
            str(count),
            percent(own["floor_p50"]),
            f"{percent(own['floor_p5'])} to {percent(own['floor_p95'])}",
            percent(own["interval_excludes_1"]),
            percent(own["alarms_apart"]),
            f"{percent(pairs.min())} to {percent(pairs.max())}",
            percent(own["alarms_shared"]),
            str(own["judged"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    run_stage(main)
