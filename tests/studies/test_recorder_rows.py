"""Rows of the study of what the recorder costs."""

import runpy

import pandas as pd
from project import ROOT


def test_steps_of_a_turn_are_one_round() -> None:
    """Two turns of two steps, each after one that was not timed."""
    path = ROOT / "studies/recorder/recorder_rows.py"
    median_steps = runpy.run_path(str(path))["median_steps"]
    about = {"arm": "a", "processes": 2, "threads": 1, "world_size": 2, "tokens": 10}
    times = {1: 1.0, 2: 3.0, 4: 5.0, 5: 6.0}
    steps = pd.DataFrame(
        [{"round": number, **about, "seconds": s} for number, s in times.items()]
    )
    turns = median_steps(steps, 2)
    assert list(turns["round"]) == [0, 1]
    assert list(turns["seconds"]) == [2.0, 5.5]
    assert list(turns["tokens"]) == [10, 10]
