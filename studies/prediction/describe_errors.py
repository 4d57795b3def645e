"""Write what was predicted and what came: tables and sentences made of the numbers."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from paragraphs import all_reduces, claims, coefficients
from rows import STUDY

from minitrain.analysis.busy import why_busy
from minitrain.analysis.held_out import Errors, errors
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_csv, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import percent, plural

# what is new in a held-out setting, in words
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
    # no spread: what differs within an arm is in the medians of all of them
    if reason := why_busy(origin["load"], 0.0):
        yield f"The machine was busy: {reason}. These errors judge nothing."
    if origin["cables_left_out"]:
        yield f"Loopback alone: a cable {origin['cables_left_out']}."
    held_out = table[table["role"] != "fit"]
    yield from ("", verdict(errors_of(held_out)), "", *by_novelty(table, held_out))
    yield from ("", "## Settings that were held out", "", *settings(held_out))
    found = read_json(STUDY / "fit.json")
    reductions = read_csv(STUDY / "reductions.csv", "role")
    yield from ("", "## All-reduces", "", *all_reduces(reductions, found))
    yield from ("", "## Crossovers", "", *claims(read_json(STUDY / "verified.json")))
    yield from ("", "## Coefficients", "", *coefficients(found["coefficients"]))


def errors_of(rows: pd.DataFrame) -> Errors:
    return errors(list(rows["predicted_ms"]), list(rows["measured_ms"]))


def verdict(found: Errors) -> str:
    said = "is believed" if found.is_believed else "is not believed"
    return (
        f"The model {said}: over {plural(found.count, 'setting')} that it was not "
        f"fitted on, the median error is {percent(found.median)} (wanted: at most 8 %) "
        f"and the 95 % quantile {percent(found.p95)} (at most 20 %)."
    )


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
