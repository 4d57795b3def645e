"""What was measured of checkpoints, joined."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from checkpoints_settings import Checkpoints
from study_settings import load_study

from minitrain.analysis.comparison import Comparison, Rounds

WITHOUT, AGAIN = "none", "none again"


@dataclass(frozen=True)
class Costs:
    """By arm (``ours, every 25``): ``more`` is the training with checkpoints compared
    with the one without, ``save_ms`` the single saves, ``waits`` what training waits
    for them, a share of its time. ``read_ms`` are parts of going on.
    """

    more: dict[str, Comparison]
    save_ms: dict[str, "pd.Series[float]"]
    waits: dict[str, float]
    read_ms: dict[str, "pd.Series[float]"]
    noise_floor: float


def load_costs(study: Path) -> Costs:
    """Of the tables in the folder of the study."""
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
    # steps, as measure_costs.py names it: ours, every 25
    return int(arm.split()[-1])
