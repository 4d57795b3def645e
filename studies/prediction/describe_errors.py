"""Write tables and sentences about predicted and measured steps."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from rows import STUDY
from sections import (
    all_reduces,
    busy_meanwhile,
    claims,
    coefficients,
    errors_of,
    questions,
    verdict,
)

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_csv, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import percent

# names of what is new in a held-out setting
NEW = {
    "n_embd": "a width never fitted",
    "n_layer": "a depth never fitted",
    "processes": "a number of processes never fitted",
    "link": "a link rate never fitted",
    "bucket_cap_mb": "a bucket size never fitted",
    "samples": "a batch never fitted",
    "micro_batches": "accumulation, never fitted",
}


def main() -> None:
    origin = read_json(STUDY / "machine.json")
    table = read_csv(STUDY / "predictions.csv", "role")
    with open_atomic(STUDY / "table.md") as file:
        file.writelines(f"{line}\n" for line in page(origin, table))


def page(origin: dict[str, Any], table: pd.DataFrame) -> Iterator[str]:
    yield measured_where(origin)
    if origin["cables_left_out"]:
        yield f"Loopback alone: a cable {origin['cables_left_out']}."
    held_out = table[table["role"] != "fit"]
    busy = busy_meanwhile(origin)
    yield from (
        "",
        verdict(errors_of(held_out), busy),
        "",
        *by_novelty(table, held_out),
    )
    yield from ("", "## Settings that were held out", "", *settings(held_out))
    found = read_json(STUDY / "fit.json")
    reductions = read_csv(STUDY / "reductions.csv", "role")
    yield from ("", "## All-reduces", "", *all_reduces(reductions, found, busy))
    answers = read_json(STUDY / "crossovers.json")
    yield from ("", "## Crossovers", "", *questions(answers))
    yield from ("", *claims(read_json(STUDY / "verified.json")))
    yield from ("", "## Coefficients", "", *coefficients(found["coefficients"]))


def by_novelty(table: pd.DataFrame, held_out: pd.DataFrame) -> Iterator[str]:
    new = held_out["new"].fillna("").str.split()
    groups = {"fitted (no test)": table[table["role"] == "fit"]}
    groups["held out, all of them"] = held_out
    for name, words in NEW.items():
        groups[words] = held_out[new.map(lambda names, name=name: name in names)]
    yield "| settings | number | median error | 95 % quantile | worst |"
    yield "|---|---:|---:|---:|---:|"
    for words, rows in groups.items():
        if len(rows):
            found = errors_of(rows)
            cells = [percent(x) for x in (found.median, found.p95, found.worst)]
            yield f"| {words} | {found.count} | {' | '.join(cells)} |"


def settings(held_out: pd.DataFrame) -> Iterator[str]:
    yield "| setting | predicted | measured | error |"
    yield "|---|---:|---:|---:|"
    for row in held_out.to_dict("records"):
        times = f"{row['predicted_ms']:.1f} ms | {row['measured_ms']:.1f} ms"
        yield f"| {row['setting']} | {times} | {100 * row['error']:+.1f} % |"


if __name__ == "__main__":
    run_stage(main)
