"""Tabulate which resumed runs equal an uninterrupted one byte for byte."""

from pathlib import Path

import pandas as pd

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where

STUDY = Path(__file__).resolve().parent
COLUMNS = (
    "case",
    "ranks",
    "stops",
    "at an epoch's end",
    "in new processes",
    "byte-equal",
    "what differs",
)


def main() -> None:
    rows = pd.read_csv(STUDY / "results.csv", keep_default_na=False)
    # a run that restarted from scratch proves nothing
    rows["kept"] = rows["equal"] & (rows["went_on_from"] == rows["stopped_after"])
    with open_atomic(STUDY / "table.md") as file:
        where = measured_where(read_json(STUDY / "machine.json"))
        file.write(f"{where}\n\n{table(rows)}")


def table(rows: pd.DataFrame) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for (name, ranks), own in rows.groupby(["case", "ranks"], sort=False):
        stops = own[own["stopped_after"] > 0]
        differ = "; ".join(sorted({*own["differ"]} - {""}))
        cells = [
            str(name),
            str(ranks),
            str(stops["stopped_after"].nunique()),
            str(stops["end_of_epoch"].sum()),
            str((stops["processes"] == "new").sum()),
            f"{stops['kept'].sum()} of {len(stops)}",
            differ or "nothing",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run_stage(main)
