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
    why, origin = _not_judged(studied.origin), studied.origin
    floor = None if why else float(origin["allreduce_noise_floor"])
    measured = [_cells(row, floor) for row in found.to_dict("records")]
    rows = [*measured, *_on_gpus(results)]
    far = found[found["hosts"] > 1]
    return {
        "foreign": None,
        "finding": _bits(far),
        "outcome": _outcome(far, origin, why),
        "allreduce_noise_floor": None if floor is None else percent(floor),
        "table": table(COLUMNS, rows),
        "on_gpus": any(run.startswith("nccl-") for run in results.timing),
        "made_by": " ".join(made_by(studied)),
    }


def _not_judged(origin: Mapping[str, Any]) -> str | None:
    """Why what the study measured is not judged, as the end of a sentence."""
    load = origin["provenance"].get("load")
    if busy := why_busy(load, origin.get("spread", 0.0)):
        return f"since the machine was busy ({busy})"
    if "noise_floor" not in origin:
        return "since the study recorded no noise floor"
    return None


def _bits(far: pd.DataFrame) -> str:
    same = int(far["same_on_one_host"].sum())
    links = plural(len(far), "link")
    return f"{same} of {links} between two hosts gave the bits of one host"


def _outcome(far: pd.DataFrame, origin: Mapping[str, Any], why: str | None) -> str:
    bits = f"{_bits(far)}."
    if why:
        return f"{bits} No speed is judged, {why}."
    return f"{bits} {_speeds(far, origin['noise_floor'])}".strip()


def _speeds(far: pd.DataFrame, floor: float) -> str:
    if len(far) < 2:
        return ""
    by_speed = far.sort_values("tokens_per_s").to_dict("records")
    slow, fast = by_speed[0], by_speed[-1]
    kept = slow["tokens_per_s"] / fast["tokens_per_s"]
    same = f"arms that are the same were up to {percent(floor)} apart"
    none = f"No difference in speed is seen between {slow['link']} and {fast['link']}"
    if 1 / kept - 1 <= floor:
        return f"{none}: {same}."
    # a median beyond the floor is not enough: all rounds must agree
    if slow["tokens_per_s_most"] >= fast["tokens_per_s_least"]:
        return f"{none}: rounds of both overlap."
    over = f"Over {slow['link']} training ran at {percent(kept)} of its speed"
    return f"{over} over {fast['link']}; {same}."


def _measured(row: Mapping[Any, Any], floor: float | None) -> str:
    """The all-reduces that came, and whether they are what was expected."""
    expected, came = row["allreduce_expected_ms"], row["allreduce_ms"]
    if floor is None or pd.isna(expected):
        return ms(came)
    if max(expected / came, came / expected) - 1 <= floor:
        return f"{ms(came)}, as expected"
    # rounds on both sides of it confirm nothing
    around = row["allreduce_ms_least"] <= expected <= row["allreduce_ms_most"]
    return f"{ms(came)}, not told apart" if around else ms(came)


def _cells(row: Mapping[Any, Any], floor: float | None) -> list[str]:
    least, most = row["tokens_per_s_least"], row["tokens_per_s_most"]
    expected = row["allreduce_expected_ms"]
    hosts = plural(row["hosts"], "host")
    far, several = row["hosts"] > 1, row["processes"] > 1
    same = "those of one host" if row["same_on_one_host"] else "not those of one host"
    return [
        f"{hosts}, {row['link']}" if far else hosts,
        str(row["processes"]),
        thousands(row["tokens_per_s"]),
        f"{thousands(least)} to {thousands(most)}",
        ms(expected) if several and pd.notna(expected) else UNDEFINED,
        _measured(row, floor) if several else UNDEFINED,
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
