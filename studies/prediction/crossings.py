"""Sections of table.md: crossovers, and the claims about them."""

import math
from collections.abc import Iterator
from typing import Any

from held_out import LEAST_COUNT, LEAST_PAIRS

from minitrain.report.numbers import percent, plural

UNITS = {"batch": " samples", "width": "", "mbit": " Mbit/s"}
ONES = {"processes": "several processes", "compression": "float16"}
OTHERS = {"processes": "one", "compression": "float32"}


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
