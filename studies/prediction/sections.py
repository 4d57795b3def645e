"""Sections of table.md, and titles: the verdict on the model, all-reduces, crossovers
and the claims about them. Nothing is judged on a busy machine.
"""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from held_out import LEAST_COUNT, LEAST_PAIRS, Errors, errors

from minitrain.analysis.busy import why_busy
from minitrain.report.numbers import percent, plural

# required accuracy of a link, from this size on
LARGE_BYTES, WITHIN = 1e6, 0.10
UNITS = {"batch": " samples", "width": "", "mbit": " Mbit/s"}
ONES = {"processes": "several processes", "compression": "float16"}
OTHERS = {"processes": "one", "compression": "float32"}


def errors_of(rows: pd.DataFrame) -> Errors:
    return errors(list(rows["predicted_ms"]), list(rows["measured_ms"]))


def busy_meanwhile(origin: dict[str, Any]) -> str | None:
    # no spread: variation within an arm is already in the medians
    return why_busy(origin["load"], 0.0)


def verdict(found: Errors, busy: str | None) -> str:
    said = f"The model is {'' if found.is_believed else 'not '}believed"
    if busy:
        said = f"The model is not judged, since the machine was busy ({busy})"
    return (
        f"{said}: over {plural(found.count, 'setting')} that it was not "
        f"fitted on, the median error is {percent(found.median)} (wanted: at most 8 %) "
        f"and the 95 % quantile {percent(found.p95)} (at most 20 %)."
    )


def title(found: Errors, busy: str | None) -> str:
    what = f"Steps of {plural(found.count, 'setting')} never fitted"
    if busy:
        return f"{what}: not judged, since the machine was busy ({busy})"
    return (
        f"{what}: median error {percent(found.median)}, 95 % of them within "
        f"{percent(found.p95)}"
    )


def all_reduces(
    reductions: pd.DataFrame, found: dict[str, Any], busy: str | None
) -> Iterator[str]:
    for number, line in enumerate(found["network"]["loopback"]["lines"]):
        begin = f"from {line['from_bytes']:,.0f} bytes on, " if number else ""
        per_message = f"{1e6 * line['alpha']:.0f} µs a message"
        yield f"- loopback: {begin}{per_message}, {1e9 * line['beta']:.2f} ns a byte."
    cables = reductions[reductions["link"] != "loopback"]
    large = cables[cables["num_bytes"] >= LARGE_BYTES]
    if len(large):
        worst = float(large["error"].abs().max())
        verdict = "holds" if worst <= WITHIN else "does not hold"
        verdict = "is not judged" if busy else verdict
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


def coefficients(found: dict[str, Any]) -> Iterator[str]:
    yield "Seconds, but for factors; 5-95 % bootstrap intervals over the rounds."
    yield ""
    yield "| coefficient | value | interval |"
    yield "|---|---:|---:|"
    for name, one in found.items():
        interval = f"{one['low']:.3g} to {one['high']:.3g}"
        yield f"| `{name}` | {one['value']:.3g} | {interval} |"


def questions(answers: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "An answer is as wrong as ratios of two settings that were both held out: the "
        "largest error of such pairs, for pairs that share a setting err together; the "
        f"95 % quantile where {LEAST_COUNT} or more share none. {LEAST_PAIRS} pairs "
        "are needed."
    )
    yield from ("", "| question | on cables | wrong by | crosses at | unsure between |")
    yield "|---|---:|---|---:|---:|"
    for one in answers:
        found = " | ".join(crossing(one, UNITS[one["over"]]))
        asked = f"{one['question']} over {one['over']}"
        yield f"| {asked} | {one['pairs_on_cables']} | {found} |"


def crossing(one: dict[str, Any], unit: str) -> list[str]:
    references = plural(one["references"], "distinct reference")
    rests_on = f"{plural(one['pairs'], 'pair')}, {references}"
    if one["error"] is None:
        return [rests_on, one["answer"], ""]
    wrong = f"{percent(math.expm1(one['error']))}, the {one['bound']} of {rests_on}"
    if one["at"] is None:
        return [wrong, "nowhere", ""]
    unsure = f"{short(one['low'], unit)} to {short(one['high'], unit)}"
    return [wrong, short(one["at"], unit), unsure]


def claims(verified: dict[str, Any]) -> Iterator[str]:
    found = verified["claims"]
    if not found:
        yield "Nothing is sure enough to be claimed."
        return
    if verified["busy"]:
        yield f"No claim is judged: the machine was busy ({verified['busy']})."
    else:
        kept = sum(one["claim"] == "holds" for one in found)
        yield f"{kept} of {plural(len(found), 'claim')} hold."
        yield from ("", *crossovers(found))
    yield ""
    yield "| question | measured at | claim | ratio | noise floor |  |"
    yield "|---|---:|---|---:|---:|---|"
    for one in found:
        unit = UNITS[one["over"]]
        faster, slower = ONES[one["question"]], OTHERS[one["question"]]
        if one["gain"] <= 0:
            faster, slower = slower, faster
        ratio = f"{one['ratio']:.2f} ({one['low_ratio']:.2f}-{one['high_ratio']:.2f})"
        yield (
            f"| {one['question']} over {one['over']} | {short(one['value'], unit)} | "
            f"{faster} faster than {slower} | {ratio} | "
            f"{percent(one['noise_floor'])} | {one['claim']} |"
        )


def crossovers(found: list[dict[str, Any]]) -> Iterator[str]:
    """Tabulate crossovers; verified if claims on both sides hold."""
    by_answer: dict[tuple[Any, ...], list[str]] = {}
    # without a crossover, the claim is the same on both sides
    for one in (x for x in found if x["at"] is not None):
        answer = one["question"], one["over"], one["at"]
        by_answer.setdefault(answer, []).append(one["claim"])
    if not by_answer:
        return
    verified = [both == ["holds"] * 2 for both in by_answer.values()]
    yield (
        f"{sum(verified)} of {plural(len(verified), 'crossover')} verified: on both "
        "sides of it, away from what is unsure, what was predicted to be faster is, by "
        "more than the claim's own noise floor (of both that it compares, once more)."
    )
    for (question, over, at), both in by_answer.items():
        came = ", ".join(both) if len(both) == 2 else f"{both[0]}, on one side alone"
        yield f"- {question} over {over} at {short(at, UNITS[over])}: {came}"


def short(value: float | None, unit: str) -> str:
    return "beyond the range" if value is None else f"{float(f'{value:.3g}'):,g}{unit}"
