"""The table of one process, several, and two hosts: by the study of networks."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from minitrain.analysis.busy import why_busy
from minitrain.report.numbers import ms, percent, plural, thousands
from minitrain.report.render import table
from minitrain.report.results import Results, num_hosts
from minitrain.report.studied import made_by

UNDEFINED = "-"
COLUMNS = (
    "where",
    "processes",
    "tokens per second",
    "least and most",
    "all-reduces of a step, expected",
    "measured",
    "bits",
)


def studied_hosts(results: Results) -> dict[str, Any]:
    """What the section says beside the largest run, or ``foreign``: why there is none.

    Runs on GPUs come from the pipeline itself, where it made some.
    """
    studied = results.studied_hosts
    if why := studied.foreign(results.provenance[results.largest]):
        return {"foreign": why}
    found = studied.table
    busy = why_busy(studied.origin["provenance"].get("load"), 0.0)
    rows = [*map(_cells, found.to_dict("records")), *_on_gpus(results)]
    return {
        "foreign": None,
        "outcome": _outcome(found[found["hosts"] > 1], busy),
        "table": table(COLUMNS, rows),
        "on_gpus": any(run.startswith("nccl-") for run in results.timing),
        "made_by": " ".join(made_by(studied)),
    }


def _outcome(far: pd.DataFrame, busy: str | None) -> str:
    same = int(far["same_on_one_host"].sum())
    links = plural(len(far), "link")
    bits = f"{same} of {links} between two hosts gave the bits of one host."
    if busy:
        return f"{bits} No speed is judged, since the machine was busy ({busy})."
    speed = far.set_index("link")["tokens_per_s"]
    slowest, fastest = speed.idxmin(), speed.idxmax()
    kept = percent(speed.min() / speed.max())
    return f"{bits} Over {slowest} training ran at {kept} of its speed over {fastest}."


def _cells(row: Mapping[Any, Any]) -> list[str]:
    least, most = row["tokens_per_s_least"], row["tokens_per_s_most"]
    times = row["allreduce_expected_ms"], row["allreduce_ms"]
    hosts = plural(row["hosts"], "host")
    far, several = row["hosts"] > 1, row["processes"] > 1
    same = "those of one host" if row["same_on_one_host"] else "not those of one host"
    return [
        f"{hosts}, {row['link']}" if far else hosts,
        str(row["processes"]),
        thousands(row["tokens_per_s"]),
        f"{thousands(least)} to {thousands(most)}",
        *(ms(time) if several and pd.notna(time) else UNDEFINED for time in times),
        f"{row['verdict']}, {same}" if far else row["verdict"],
    ]


def _on_gpus(results: Results) -> Iterator[list[str]]:
    for run, timing in results.timing.items():
        if run.startswith("nccl-"):
            made, time = results.provenance[run], timing["allreduce_p50_ms"]
            yield [
                f"{plural(num_hosts(timing), 'host')}, {made['machine']['gpu']}",
                str(made["world_size"]),
                thousands(timing["tokens_per_s"]),
                UNDEFINED,
                UNDEFINED,
                ms(time) if time is not None else UNDEFINED,
                results.verdict(run),
            ]
