"""Summary statistics over many trials."""

from collections import Counter
from typing import Any

import pandas as pd
from faults import FAULTS
from runs import Trial

MISSED = ("no process", "no checkpoint")


def summary(trials: list[Trial]) -> dict[str, Any]:
    """Count trials by kind and outcome, with times of detection and recovery (s)."""
    kinds: dict[str, Any] = {}
    for kind in FAULTS:
        of_kind = [trial for trial in trials if trial.kind == kind]
        outcomes = Counter(t.outcome for t in of_kind if not t.wrong)
        wrong = sum(bool(trial.wrong) for trial in of_kind)
        kinds[kind] = {"trials": len(of_kind), "wrong": wrong, **outcomes}
    wrong = sum(bool(trial.wrong) for trial in trials)
    # the pipeline had finished before the fault
    missed = sum(trial.hit in MISSED for trial in trials)
    went_on = sum(trial.went_on_from is not None for trial in trials)
    times = {"kinds": kinds, "trials": len(trials), "wrong": wrong}
    times |= {"missed": missed, "went_on_from_a_checkpoint": went_on}
    killed = [trial for trial in trials if trial.kind == "kill_rank"]
    for name, some in {"all": trials, "killed_rank": killed}.items():
        for what in ("detection_s", "recovery_s"):
            values = pd.Series([getattr(trial, what) for trial in some], dtype=float)
            for quantile in (0.5, 0.95):
                value = values.quantile(quantile)
                key = f"{what[:-2]}_{name}_p{quantile * 100:.0f}_s"
                times[key] = None if pd.isna(value) else round(float(value), 3)
    return times
