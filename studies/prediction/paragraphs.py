"""Parts of table.md: all-reduces, crossovers, coefficients."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from minitrain.analysis.busy import why_busy
from minitrain.report.numbers import percent, plural

# from here on a link must be right within so much
LARGE_BYTES, WITHIN = 1e6, 0.10
UNITS = {"batch": " samples", "width": "", "mbit": " Mbit/s"}
ONES = {"processes": "several processes", "compression": "float16"}
OTHERS = {"processes": "one", "compression": "float32"}


def all_reduces(reductions: pd.DataFrame, found: dict[str, Any]) -> Iterator[str]:
    for number, line in enumerate(found["network"]["loopback"]["lines"]):
        begin = f"from {line['from_bytes']:,.0f} bytes on, " if number else ""
        per_message = f"{1e6 * line['alpha']:.0f} µs a message"
        yield f"- loopback: {begin}{per_message}, {1e9 * line['beta']:.2f} ns a byte."
    cables = reductions[reductions["link"] != "loopback"]
    large = cables[cables["num_bytes"] >= LARGE_BYTES]
    if len(large):
        worst = float(large["error"].abs().max())
        verdict = "holds" if worst <= WITHIN else "does not hold"
        yield (
            f"- Cables: within 10 % for all-reduces of 1 MB and more {verdict}: the "
            f"worst of {len(large)} is {percent(worst)} off."
        )
    yield ""
    yield "| link | processes | bytes | role | predicted | measured | error |"
    yield "|---|---:|---:|---|---:|---:|---:|"
    for row in reductions.to_dict("records"):
        times = [f"{row[f'{k}_us'] / 1e3:.2f} ms" for k in ("predicted", "measured")]
        yield (
            f"| {row['link']} | {row['processes']} | {row['num_bytes']:,} | "
            f"{row['role']} | {' | '.join(times)} | {100 * row['error']:+.0f} % |"
        )


def claims(verified: dict[str, Any]) -> Iterator[str]:
    found = verified["claims"]
    kept = sum(one["claim"] == "holds" for one in found)
    yield f"{kept} of {plural(len(found), 'claim')} hold."
    if reason := why_busy(verified["load"], 0.0):
        yield f"The machine was busy: {reason}. That judges nothing."
    yield ""
    yield "| question | crosses at | unsure between | measured at | claim | ratio |  |"
    yield "|---|---:|---:|---:|---|---:|---|"
    for one in found:
        unit = UNITS[one["over"]]
        faster, slower = ONES[one["question"]], OTHERS[one["question"]]
        if one["gain"] <= 0:
            faster, slower = slower, faster
        ratio = f"{one['ratio']:.2f} ({one['low_ratio']:.2f}-{one['high_ratio']:.2f})"
        yield (
            f"| {one['question']} over {one['over']} | {crossing(one, unit)} | "
            f"{short(one['value'], unit)} | {faster} faster than {slower} | {ratio} | "
            f"{one['claim']} |"
        )


def crossing(one: dict[str, Any], unit: str) -> str:
    if one["at"] is None:
        return "nowhere | "
    unsure = f"{short(one['low'], unit)} to {short(one['high'], unit)}"
    return f"{short(one['at'], unit)} | {unsure}"


def short(value: float | None, unit: str) -> str:
    return "beyond the range" if value is None else f"{value:.3g}{unit}"


def coefficients(found: dict[str, Any]) -> Iterator[str]:
    yield "Seconds, but for factors; 5-95 % bootstrap intervals over the rounds."
    yield ""
    yield "| coefficient | value | interval |"
    yield "|---|---:|---:|"
    for name, one in found.items():
        interval = f"{one['low']:.3g} to {one['high']:.3g}"
        yield f"| `{name}` | {one['value']:.3g} | {interval} |"
