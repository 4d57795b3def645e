"""Measure on both sides of every crossover, and evaluate the claims."""

from pathlib import Path
from typing import Any

import pandas as pd
from claims import arms_of, claim, judged
from network_runs import Placed
from placed_arms import run
from prediction_settings import Prediction
from rows import STUDY
from study_settings import load_study

from minitrain.analysis.comparison import COLUMNS
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json, write_json
from minitrain.core.provenance import provenance

# More turns than in the main measurement, since there are few arms, and steps of 10 ms
# are noisy.
LONGER = 5


def main() -> None:
    study = load_study(STUDY, Prediction)
    origin = provenance(Path(__file__))
    answers = read_json(STUDY / "crossovers.json")
    sides = [claim(one, side) for one in answers for side in one["sides"]]
    turns, load = measure(study, arms_of(sides))
    with open_atomic(STUDY / "verifying.csv") as file:
        turns.to_csv(file, index=False, float_format="%.7g")
    found = {**judged(sides, turns, load), "load": load}
    write_json(STUDY / "verified.json", {**found, **origin})


def measure(study: Prediction, arms: list[Placed]) -> tuple[pd.DataFrame, Any]:
    if not arms:
        # no claim is certain enough to test
        return pd.DataFrame(columns=COLUMNS), None
    num_steps = LONGER * study.steps_per_round
    turns, _, load = run(arms, study.num_verifying_rounds, num_steps)
    return turns, load


if __name__ == "__main__":
    run_stage(main)
