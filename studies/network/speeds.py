"""Speeds of the arms over each link, and against stock DDP on the same hosts."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from arms import AGAIN, ARMS, FOUR, ONE_HOST, Arm

STUDY = Path(__file__).resolve().parent


class Ratio(NamedTuple):
    """Of rounds, each against its own: the median, and all between least and most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    def differs(self, floor: float) -> bool:
        """Whether all rounds lie on one side of 1, and the median beyond ``floor``."""
        beyond = max(self.median, 1 / self.median) - 1 > floor
        return beyond and (self.low > 1 or self.high < 1)


class Speeds:
    """What ``runs.csv`` holds."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        names = [str(link) for link in rows["link"].unique()]
        self.links = [link for link in names if link != ONE_HOST]
        self.num_rounds = rows["round"].nunique()

    def of(self, arm: Arm, link: str, column: str = "tokens_per_s") -> Any:
        """Its values, by round."""
        rows, link_ = self._rows, link
        mine = rows[(rows["arm"] == arm.name) & (rows["link"] == link_)]
        return mine.set_index("round")[column].sort_index()

    def median(self, arm: Arm, link: str, column: str = "tokens_per_s") -> float:
        """Over all rounds."""
        return float(self.of(arm, link, column).median())

    def ratio(self, arm: Arm, other: Arm, link: str, over: str | None = None) -> Ratio:
        """Speed of ``arm`` as a multiple of the ``other``'s, which may be ``over``
        another link.
        """
        found = (self.of(arm, link) / self.of(other, over or link)).to_numpy()
        return Ratio(float(np.median(found)), float(found.min()), float(found.max()))

    def noise_floor(self, column: str = "tokens_per_s") -> float:
        """How far two arms that are the same lay apart, as a share of the lesser: the
        most of any round over any link.
        """
        twins = named(AGAIN), named(FOUR)
        found = [[self.of(arm, x, column) for arm in twins] for x in self.links]
        ratios = pd.concat([again / first for again, first in found])
        return float(max(ratios.max(), 1 / ratios.min())) - 1

    def spread(self) -> float:
        """How far rounds of one arm over one link lie apart: the median over them."""
        speeds = self._rows.groupby(["arm", "link"])["tokens_per_s"]
        return float((speeds.max() / speeds.min() - 1).median())


def read() -> Speeds:
    return Speeds(pd.read_csv(STUDY / "runs.csv"))


def named(name: str) -> Arm:
    return next(arm for arm in ARMS if arm.name == name)


def stock_like(arm: Arm) -> Arm | None:
    """Stock DDP on as many hosts and ranks; None for itself."""
    same = [one for one in ARMS if not one.changes and shape(one) == shape(arm)]
    return same[0] if same and same[0] is not arm else None


def shape(arm: Arm) -> tuple[int, int]:
    return arm.hosts, arm.ranks_per_host
