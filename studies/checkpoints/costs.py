"""Measured costs of checkpoints, joined."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from checkpoints_settings import Checkpoints
from study_settings import load_study

from minitrain.analysis.comparison import Comparison, Rounds

WITHOUT, AGAIN = "none", "none again"


@dataclass(frozen=True)
class Costs:
    """Costs by arm (``ours, every 25``): ``more`` compares training with and without
    checkpoints, ``save_ms`` are the single saves, ``waits`` is the fraction of time
    that training waits for them. ``read_ms`` are the phases of a resume.
    """

    more: dict[str, Comparison]
    save_ms: dict[str, "pd.Series[float]"]
    waits: dict[str, float]
    read_ms: dict[str, "pd.Series[float]"]
    noise_floor: float


def load_costs(study: Path) -> Costs:
    """Load the tables in the study's folder."""
    rows = pd.read_csv(study / "rounds.csv")
    found = pd.read_csv(study / "times.csv")
    times = {str(what): own["ms"] for what, own in found.groupby("what", sort=False)}
    arms = list(rows["arm"].unique())
    rounds = Rounds(rows, arms, [(WITHOUT, AGAIN)], "rounds.csv")
    saving = [arm for arm in arms if arm not in (WITHOUT, AGAIN)]
    turn_ms = 1000 * rows["seconds"][rows["arm"] == WITHOUT].median()
    step_ms = turn_ms / load_study(study, Checkpoints).steps_per_round
    return Costs(
        {arm: rounds.compare(arm, WITHOUT) for arm in saving},
        {arm: times[arm] for arm in saving},
        {arm: times[arm].median() / (_between(arm) * step_ms) for arm in saving},
        {what: own for what, own in times.items() if what not in saving},
        rounds.noise_floor(),
    )


def _between(arm: str) -> int:
    # interval in steps from the arm's name: ours, every 25
    return int(arm.split()[-1])
