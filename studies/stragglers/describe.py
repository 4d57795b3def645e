"""Write how often the verdict was right, and the error of each law of the step time."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from tables import table

from minitrain.analysis.busy import why_busy
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import ms, percent

STUDY = Path(__file__).resolve().parent
TRIALS = (
    "a rank slowed by",
    "trials",
    "right",
    "another rank named",
    "no rank named",
    "injected",
    "detected, less injected (median; largest)",
    "others wait, less detected (median)",
)
KINDS = {"clean": "nothing", "sleep": "sleep", "busy": "a busy loop"}
LAWS = {"slowest": "the slowest rank", "mean": "the mean of the ranks"}


def main() -> None:
    rows = pd.read_csv(STUDY / "results.csv", dtype={"planted": str, "found": str})
    rows = rows.fillna({"planted": "", "found": ""})
    origin, is_clean = read_json(STUDY / "machine.json"), rows["kind"] == "clean"
    parts = [measured_where(origin), table(TRIALS, trials(rows))]
    if reason := why_busy(origin["load"], 0.0):
        parts.insert(1, f"The machine was busy: {reason}. These trials judge nothing.")
    if origin["no_quota"]:
        parts.append(f"No rank was held to a share of a core: {origin['no_quota']}.")
    parts.append(floors(rows[is_clean]))
    head = "a step takes as long as own work of", "median error", "largest error"
    parts.append(table(head, laws(rows[~is_clean])))
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n\n".join(parts) + "\n")


def trials(rows: pd.DataFrame) -> Iterator[list[str]]:
    for kind, own in rows.groupby("kind", sort=False):
        right, none = own["found"] == own["planted"], own["found"] == ""
        counts = len(own), right.sum(), (~right & ~none).sum(), none.sum()
        found = own[right & ~none]
        yield [
            KINDS.get(str(kind), f"{kind} of a core"),
            *map(str, counts),
            *(["-"] * 3 if found.empty else excess(found)),
        ]


def excess(found: pd.DataFrame) -> list[str]:
    planted = found["planted_ms"]
    off = found["excess_ms"] - planted
    wait = found["others_wait_ms"] - found["excess_ms"]
    return [
        f"{planted.min():.1f} to {ms(planted.max())}",
        f"{off.median():+.1f}; {max(off, key=abs):+.1f} ms",
        f"{wait.median():+.1f} ms",
    ]


def floors(clean: pd.DataFrame) -> str:
    shares = (clean[key] / clean["step_ms"] for key in ("excess_ms", "visible_ms"))
    seen, visible = (
        f"{percent(share.median())} of a step in the median, {percent(share.max())} at "
        "most"
        for share in shares
    )
    return (
        f"Without a slow rank a step took {ms(clean['step_ms'].median())}. One rank "
        f"exceeded the others by {seen}. The smallest detectable excess: "
        f"{visible}."
    )


def laws(slowed: pd.DataFrame) -> Iterator[list[str]]:
    for law, name in LAWS.items():
        off = (slowed[f"{law}_law_ms"] / slowed["step_ms"] - 1).abs()
        yield [name, percent(off.median()), percent(off.max())]


if __name__ == "__main__":
    run_stage(main)
