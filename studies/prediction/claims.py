"""Claims about both sides of a crossover, their arms, and their verdicts."""

from dataclasses import replace
from typing import Any

import pandas as pd
from crossover import contenders, varied
from network_runs import Placed
from placed_arms import arm_of
from setting import name_of, setting_of

from minitrain.analysis.busy import why_busy
from minitrain.analysis.comparison import Rounds

AGAIN = " again"
# verdict on a claim, by the result of the arm claimed to be faster
HOLDS = {"faster": "holds", "slower": "refuted", "no difference seen": "undecided"}


def claim(answer: dict[str, Any], side: str) -> dict[str, Any]:
    there = answer["sides"][side]
    setting = varied(setting_of(answer["setting"]), answer["over"], there["value"])
    if answer["over"] == "mbit":
        # in tc's format
        setting = replace(setting, link=f"{there['value']:.0f}mbit")
    both = contenders(answer["question"], setting)
    arms = [arm_of(one, name_of(one)) for one in both]
    kept = {key: answer[key] for key in ("question", "over", "at", "low", "high")}
    return {**kept, "side": side, **there, "arms": arms}


def arms_of(sides: list[dict[str, Any]]) -> list[Placed]:
    """Return the arms of all claims and their A/A duplicates for the same rounds; an
    arm shared by several claims is included once.
    """
    arms: dict[str, Placed] = {}
    for one in sides:
        again = [replace(arm, name=arm.name + AGAIN) for arm in one["arms"]]
        arms |= {arm.name: arm for arm in (*one["arms"], *again)}
    return [*arms.values()]


def judged(sides: list[dict[str, Any]], turns: pd.DataFrame, load: Any) -> Any:
    """Evaluate each claim on all rounds, against the larger noise floor of its own two
    A/A pairs: a step of 10 ms is noisier than one of a second.
    """
    if not sides:
        return {"claims": [], "busy": None}
    rows = turns[turns["rank"] == 0].assign(threads=1)
    rows["world_size"] = rows["processes"]
    busy = why_busy(load, rounds_of(sides, rows).spread())
    claims = [judge(one, rounds_of([one], rows), busy) for one in sides]
    return {"claims": claims, "busy": busy}


def rounds_of(sides: list[dict[str, Any]], rows: pd.DataFrame) -> Rounds:
    """Return the rounds of ``sides`` only, with their A/A duplicates."""
    names = [arm.name for arm in arms_of(sides)]
    repeats = [(name, name + AGAIN) for name in names if name + AGAIN in names]
    return Rounds(rows, names, repeats, "verifying.csv")


def judge(one: dict[str, Any], rounds: Rounds, busy: str | None) -> dict[str, Any]:
    first, second = (arm.name for arm in one["arms"])
    claimed_first = one["gain"] > 0
    pair = (first, second) if claimed_first else (second, first)
    found = rounds.compare(*pair)
    return {
        **{key: value for key, value in one.items() if key != "arms"},
        "faster": pair[0],
        "than": pair[1],
        "ratio": found.ratio,
        "low_ratio": found.low,
        "high_ratio": found.high,
        "noise_floor": found.noise_floor,
        "num_pairs": found.num_pairs,
        "claim": "not judged" if busy else HOLDS[found.verdict],
    }
