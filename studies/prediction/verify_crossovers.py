"""Measure on both sides of every crossover, and say whether the claim holds there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from placed_arms import arm_of, run
from prediction_settings import Prediction
from rows import STUDY

from minitrain.analysis.comparison import Rounds
from minitrain.analysis.crossover import contenders, varied
from minitrain.bench.placed import Placed
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json, write_json
from minitrain.core.provenance import provenance
from minitrain.core.setting import name_of, setting_of
from minitrain.core.study import load_study

AGAIN = " again"
# what a claim comes to, by the verdict on what was claimed to be faster
HOLDS = {"faster": "holds", "slower": "refuted", "no difference seen": "undecided"}


def main() -> None:
    study = load_study(STUDY, Prediction)
    origin = provenance(Path(__file__))
    answers = read_json(STUDY / "crossovers.json")
    sides = [claim(one, side) for one in answers for side in one["sides"]]
    arms: dict[str, Placed] = {}
    for one in sides:
        arms |= {arm.name: arm for arm in one["arms"]}
    # A/A: of each question, what it is about, once more
    for one in sides:
        first = one["arms"][0]
        arms[first.name + AGAIN] = replace(first, name=first.name + AGAIN)
    turns, _, load = run(
        [*arms.values()], study.num_verifying_rounds, study.steps_per_round
    )
    with open_atomic(STUDY / "verifying.csv") as file:
        turns.to_csv(file, index=False, float_format="%.7g")
    judged = [judge(one, turns) for one in sides]
    write_json(STUDY / "verified.json", {"claims": judged, "load": load, **origin})


def claim(answer: dict[str, Any], side: str) -> dict[str, Any]:
    there = answer["sides"][side]
    setting = varied(setting_of(answer["setting"]), answer["over"], there["value"])
    if answer["over"] == "mbit":
        # as tc takes it
        setting = replace(setting, link=f"{there['value']:.0f}mbit")
    both = contenders(answer["question"], setting)
    arms = [arm_of(one, name_of(one)) for one in both]
    kept = {key: answer[key] for key in ("question", "over", "at", "low", "high")}
    return {**kept, "side": side, **there, "arms": arms}


def judge(one: dict[str, Any], turns: pd.DataFrame) -> dict[str, Any]:
    first, second = (arm.name for arm in one.pop("arms"))
    rows = turns[turns["rank"] == 0].assign(threads=1)
    rows["world_size"] = rows["processes"]
    again = first + AGAIN
    rounds = Rounds(rows, [first, second, again], [(first, again)], "verifying.csv")
    claimed_first = one["gain"] > 0
    pair = (first, second) if claimed_first else (second, first)
    found = rounds.compare(*pair)
    return {
        **one,
        "faster": pair[0],
        "than": pair[1],
        "ratio": found.ratio,
        "low_ratio": found.low,
        "high_ratio": found.high,
        "noise_floor": found.noise_floor,
        "claim": HOLDS[found.verdict],
    }


if __name__ == "__main__":
    run_stage(main)
