"""Speeds of the arms over each link, and relative to stock DDP on the same hosts."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from arms import AGAIN, ARMS, FOUR, ONE_HOST, Arm

STUDY = Path(__file__).resolve().parent


class Ratio(NamedTuple):
    """Per-round speed ratio: the median, lowest and highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    def differs(self, floor: float) -> bool:
        """Return true if all rounds are on one side of 1, the median beyond
        ``floor``.
        """
        beyond = max(self.median, 1 / self.median) - 1 > floor
        return beyond and (self.low > 1 or self.high < 1)


class Speeds:
    """Speeds in ``runs.csv``."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        names = [str(link) for link in rows["link"].unique()]
        self.links = [link for link in names if link != ONE_HOST]
        self.num_rounds = rows["round"].nunique()

    def of(self, arm: Arm, link: str, column: str = "tokens_per_s") -> Any:
        """Return the values of an arm by round."""
        rows, link_ = self._rows, link
        mine = rows[(rows["arm"] == arm.name) & (rows["link"] == link_)]
        return mine.set_index("round")[column].sort_index()

    def median(self, arm: Arm, link: str, column: str = "tokens_per_s") -> float:
        """Return the median over all rounds."""
        return float(self.of(arm, link, column).median())

    def ratio(self, arm: Arm, other: Arm, link: str, over: str | None = None) -> Ratio:
        """Return the speed of ``arm`` as a multiple of ``other``'s, which may be
        ``over`` another link.
        """
        found = (self.of(arm, link) / self.of(other, over or link)).to_numpy()
        return Ratio(float(np.median(found)), float(found.min()), float(found.max()))

    def noise_floor(self, column: str = "tokens_per_s") -> float:
        """Return the largest relative difference between the A/A arms in any round over
        any link.
        """
        twins = named(AGAIN), named(FOUR)
        found = [[self.of(arm, x, column) for arm in twins] for x in self.links]
        ratios = pd.concat([again / first for again, first in found])
        return float(max(ratios.max(), 1 / ratios.min())) - 1

    def spread(self) -> float:
        """Return the median relative range between rounds, over arms and links."""
        speeds = self._rows.groupby(["arm", "link"])["tokens_per_s"]
        return float((speeds.max() / speeds.min() - 1).median())


def read() -> Speeds:
    return Speeds(pd.read_csv(STUDY / "runs.csv"))


def named(name: str) -> Arm:
    return next(arm for arm in ARMS if arm.name == name)


def stock_like(arm: Arm) -> Arm | None:
    """Return the stock DDP arm with as many hosts and ranks; None for itself."""
    same = [one for one in ARMS if not one.changes and shape(one) == shape(arm)]
    return same[0] if same and same[0] is not arm else None


def shape(arm: Arm) -> tuple[int, int]:
    return arm.hosts, arm.ranks_per_host
