"""Timed turns, and steps that were not recorded."""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Rounds
from minitrain.core.files import read_json

STUDY = Path(__file__).resolve().parent
RAW, AGAIN = "raw DDP loop", "raw DDP loop again"
BY_STEP = ", median step"


def read_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the turns, and the median step of each turn."""
    rows, steps = (pd.read_csv(STUDY / f"{name}.csv") for name in ("rounds", "steps"))
    return rows, median_steps(
        steps, read_json(STUDY / "machine.json", "every")["every"]
    )


def median_steps(steps: pd.DataFrame, every: int) -> pd.DataFrame:
    """Return one row per turn of an arm, with the median time per target of its steps,
    times the mean targets. Steps of a turn share its conditions, so they are not
    separate rounds.
    """
    turn = steps["round"] // (1 + every)
    table = steps.assign(round=turn, each=steps["seconds"] / steps["tokens"])
    by = ["round", "arm", "processes", "threads", "world_size"]
    turns = table.groupby(by, as_index=False, sort=False).agg(
        tokens=("tokens", "mean"), each=("each", "median")
    )
    return turns.assign(seconds=turns["each"] * turns["tokens"]).drop(columns="each")


def rounds_of(rows: pd.DataFrame) -> Rounds:
    """Return the arms of ``rows`` as rounds for comparison."""
    return Rounds(rows, list(rows["arm"].unique()), [(RAW, AGAIN)], "studies/recorder")
