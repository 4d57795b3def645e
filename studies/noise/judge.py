"""Evaluate A/A pairs: their noise floors, and how often a pair is reported as different
given the noise floor of another.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from noise_settings import Noise
from study_settings import load_study

from minitrain.analysis.comparison import Comparison, Rounds
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic
from minitrain.core.progress import progress

STUDY = Path(__file__).resolve().parent
FLOORS = {"floor_p5": 0.05, "floor_p50": 0.5, "floor_p95": 0.95}
SHARES = ["interval_excludes_1", "alarms_apart", "alarms_shared"]
Pair = tuple[str, str]


def main() -> None:
    study = load_study(STUDY, Noise)
    rows = pd.read_csv(STUDY / "rounds.csv")
    asked = [n for n in study.numbers_of_rounds if n <= rows["round"].nunique()]
    found = pd.DataFrame(
        judged
        for count in progress(asked, "judging", total=len(asked))
        for chosen in choices(rows, count, study)
        for name in study.strategies
        for judged in judge(chosen, name, study.copies)
    )
    # all pairs together, then each pair
    found = pd.concat([found.assign(pair="all"), found])
    groups = found.groupby(["strategy", "rounds", "pair"], sort=False)
    floors = {name: groups["floor"].quantile(q) for name, q in FLOORS.items()}
    table = pd.DataFrame(floors).join(groups[SHARES].mean())
    table.insert(0, "judged", groups.size())
    with open_atomic(STUDY / "noise.csv") as file:
        table.reset_index().to_csv(file, index=False, float_format="%.5f")


def choices(rows: pd.DataFrame, count: int, study: Noise) -> Iterator[pd.DataFrame]:
    random = np.random.default_rng([study.seed, count])
    every = rows["round"].unique()
    # half of the rounds in reverse order, as in a study of that many rounds
    ways = [every[every % 2 == way] for way in (0, 1)]
    for _ in range(study.num_choices if count < len(every) else 1):
        chosen = [random.permutation(way)[: count // 2] for way in ways]
        yield rows[rows["round"].isin(np.concatenate(chosen))]


def judge(rows: pd.DataFrame, name: str, copies: int) -> Iterator[dict[str, Any]]:
    arms = [f"{name} {copy}" for copy in range(1, copies + 1)]
    rows = rows[rows["arm"].isin(arms)]
    pairs = list(combinations(arms, 2))
    rounds = Rounds(rows, arms, pairs[:1], "rounds.csv")
    found: dict[Pair, Comparison] = {}
    for pair in pairs:
        # excludes the floor of the pair itself, which would be circular
        rounds.repeats = [pair]
        found[pair] = rounds.compare(*pair)
    for pair, one in found.items():
        floors: dict[bool, list[float]] = {False: [], True: []}
        for other in pairs:
            if other != pair:
                floors[bool({*other} & {*pair})].append(found[other].noise_floor)
        yield {
            "strategy": name,
            "rounds": one.num_rounds,
            "pair": ", ".join(pair),
            "floor": one.noise_floor,
            "interval_excludes_1": float(one.excludes_one),
            "alarms_apart": alarms(one, floors[False]),
            "alarms_shared": alarms(one, floors[True]),
        }


def alarms(one: Comparison, floors: list[float]) -> float:
    verdicts = [replace(one, noise_floor=floor).verdict for floor in floors]
    return sum(v != "no difference seen" for v in verdicts) / len(verdicts)


if __name__ == "__main__":
    run_stage(main)
