"""What was timed, turn by turn, and step by step where no step was recorded."""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Rounds
from minitrain.core.files import read_json

STUDY = Path(__file__).resolve().parent
RAW, AGAIN = "raw DDP loop", "raw DDP loop again"
BY_STEP = ", median step"


def read_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whole turns, and the median step of each turn."""
    rows, steps = (pd.read_csv(STUDY / f"{name}.csv") for name in ("rounds", "steps"))
    return rows, median_steps(
        steps, read_json(STUDY / "machine.json", "every")["every"]
    )


def median_steps(steps: pd.DataFrame, every: int) -> pd.DataFrame:
    """One row for each turn of an arm: of its steps, which share what befell the turn
    and so are no rounds of their own, the median time of a target, by mean targets.
    """
    turn = steps["round"] // (1 + every)
    table = steps.assign(round=turn, each=steps["seconds"] / steps["tokens"])
    by = ["round", "arm", "processes", "threads", "world_size"]
    turns = table.groupby(by, as_index=False, sort=False).agg(
        tokens=("tokens", "mean"), each=("each", "median")
    )
    return turns.assign(seconds=turns["each"] * turns["tokens"]).drop(columns="each")


def rounds_of(rows: pd.DataFrame) -> Rounds:
    """The arms of ``rows``, ready to be compared."""
    return Rounds(rows, list(rows["arm"].unique()), [(RAW, AGAIN)], "studies/recorder")
