"""Draw and tabulate which resumed runs equal an uninterrupted one byte for byte."""

from pathlib import Path

import pandas as pd

from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.canvas import BLUE, ORANGE, canvas, save
from minitrain.report.numbers import plural

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
    draw(rows[rows["stopped_after"] > 0])
    with open_atomic(STUDY / "table.md") as file:
        where = measured_where(read_json(STUDY / "machine.json"))
        file.write(f"{where}\n\n{table(rows)}")


def headline(rows: pd.DataFrame) -> str:
    last = rows["stopped_after"].max()
    counts = rows.groupby("case")["stopped_after"].nunique()
    whole = int((counts == last).sum())
    every = f"; {plural(whole, 'case')} from every step 1 to {last}" if whole else ""
    told = f"{rows['kept'].sum()} of {len(rows)} interrupted runs end in the bytes"
    return f"{told} of an undisturbed one: {plural(len(counts), 'case')}{every}"


def draw(rows: pd.DataFrame) -> None:
    names = list(rows["case"].unique())
    figure, axes = canvas(0.6 + 0.3 * len(names), headline(rows), right=0.97, left=0.25)
    for is_new, kept in ((False, True), (True, True), (False, False), (True, False)):
        own = rows[(rows["kept"] == kept) & ((rows["processes"] == "new") == is_new)]
        y = [names.index(name) - 0.2 * is_new for name in own["case"]]
        axes.plot(
            own["stopped_after"],
            y,
            "v" if is_new else "|",
            color=BLUE if kept else ORANGE,
            markersize=6,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set(ylim=(len(names) - 0.4, -0.7), xlim=(0, None))
    axes.set_xlabel(
        "stopped after step (blue: byte-equal, orange: not; triangle: new processes)"
    )
    axes.tick_params(length=0)
    with atomic_path(STUDY / "resume.png") as path:
        save(figure, path)


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
