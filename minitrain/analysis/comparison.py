"""The comparison of speed: all arms were interleaved in one run, round by round.

Two arms are compared pair by pair within a round, so that what slows the machine for
a while slows both of them. Arms measured twice (A/A) give the noise floor, below which
no difference is reported: the largest over all such pairs, since identical arms can
differ systematically. Ratios are handled as logarithms: swapping the arms of a
comparison gives exactly the inverse ratio and the opposite verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from minitrain.core.arms import baseline_arms
from minitrain.core.files import reading

COLUMNS = ("round", "arm", "processes", "threads", "world_size", "tokens", "seconds")

# a bootstrap interval of a median says little below this many pairs
MIN_ROUNDS = 5
NUM_RESAMPLES = 2000
RESAMPLING_SEED = 35000


class SpeedVerdict(StrEnum):
    """How the speed of an arm compares with that of another."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "no difference seen"


@dataclass(frozen=True)
class Comparison:
    """How fast arm A is relative to arm B.

    ``ratio`` is the median over the rounds of A's tokens per second over B's of the
    same round (geometric mean of the middle two where their number is even), ``low``
    and ``high`` its 5 % and 95 % bootstrap bounds. ``noise_floor`` is relative: 0.01
    means that a difference below 1 % is not worth reporting; it is the largest that
    ``num_pairs`` pairs of identical arms showed.
    """

    arm_a: str
    arm_b: str
    tokens_per_s_a: float
    tokens_per_s_b: float
    ratio: float
    low: float
    high: float
    noise_floor: float
    num_pairs: int
    num_rounds: int

    @property
    def excludes_one(self) -> bool:
        """Whether the interval lies on one side of 1."""
        return self.low > 1 or self.high < 1

    @property
    def exceeds_floor(self) -> bool:
        """Whether the faster arm leads by more than the noise floor."""
        return max(self.ratio, 1 / self.ratio) - 1 > self.noise_floor

    @property
    def verdict(self) -> SpeedVerdict:
        """The speed of arm A: decided by an interval without 1 beyond the floor."""
        if not (self.excludes_one and self.exceeds_floor):
            return SpeedVerdict.UNDECIDED
        return SpeedVerdict.FASTER if self.ratio > 1 else SpeedVerdict.SLOWER

    @property
    def decided(self) -> bool:
        """Whether one arm is faster."""
        return self.verdict is not SpeedVerdict.UNDECIDED


class Rounds:
    """Arms that were timed side by side, ready to be compared.

    ``rounds`` has one row per round and arm with the columns of ``COLUMNS``: tokens
    are real target tokens, seconds wall time. Arms that are not among ``arms`` are
    left out. ``twins`` are the A/A pairs: an arm and its duplicate.

    Raises:
        UserError: An arm lacks a round, or rounds are too few; it names ``source``.
    """

    def __init__(
        self,
        rounds: pd.DataFrame,
        arms: Sequence[str],
        twins: Sequence[tuple[str, str]],
        source: str,
    ) -> None:
        self.twins = twins
        with reading(Path(source)):
            mine = rounds[rounds["arm"].isin(arms)]
            self._shapes = mine.groupby("arm")[["processes", "threads"]].first()
            for column in ("tokens", "seconds"):
                values = mine[column]
                if not (np.isfinite(values) & (values > 0)).all():
                    raise ValueError(f"{column} that are not positive")
            mine = mine.assign(tokens_per_s=mine["tokens"] / mine["seconds"])
            speeds = mine.pivot(index="round", columns="arm", values="tokens_per_s")
            self._speeds = speeds.reindex(columns=[*arms])
            if self._speeds.isna().any(axis=None) or len(speeds) < MIN_ROUNDS:
                raise ValueError(f"not {MIN_ROUNDS} rounds or more of every arm")

    @property
    def num_rounds(self) -> int:
        """Rounds in which every arm took its turn."""
        return len(self._speeds)

    def tokens_per_s(self, arm: str) -> float:
        """Median tokens per second of ``arm``."""
        return float(self._speeds[arm].median())

    def scaling(self) -> pd.DataFrame:
        """One row per arm: arm, processes, threads and tokens_per_s p5, p50, p95."""
        spread = self._speeds.quantile([0.05, 0.5, 0.95]).T
        spread.columns = pd.Index([f"tokens_per_s_{p}" for p in ("p5", "p50", "p95")])
        shapes = self._shapes.loc[spread.index]
        return shapes.join(spread).rename_axis("arm").reset_index()

    def noise_floor(self) -> float:
        """Smallest relative difference worth reporting: the largest over the A/A pairs.

        Of a pair, the larger distance from 1 of the two bounds of the 5-95 % bootstrap
        interval of the A/A ratio; at the least the standard error of the mean A/A
        difference (root mean square over the square root of the number of rounds), so
        that a disturbed round, which a median does not notice, still counts.
        """
        return max(self._floor(again, arm) for arm, again in self.twins)

    def spread(self) -> float:
        """How far rounds of one arm lie apart: p95 / p5 - 1, the median over arms."""
        low, high = self._speeds.quantile([0.05, 0.95]).to_numpy()
        return float(np.median(high / low - 1))

    def compare(self, arm_a: str, arm_b: str) -> Comparison:
        """Compare two arms round by round."""
        logs = self._log_ratios(arm_a, arm_b)
        low, high = _bootstrap(logs)
        return Comparison(
            arm_a=arm_a,
            arm_b=arm_b,
            tokens_per_s_a=self.tokens_per_s(arm_a),
            tokens_per_s_b=self.tokens_per_s(arm_b),
            ratio=math.exp(np.median(logs)),
            low=math.exp(low),
            high=math.exp(high),
            noise_floor=self.noise_floor(),
            num_pairs=len(self.twins),
            num_rounds=self.num_rounds,
        )

    def _floor(self, again: str, arm: str) -> float:
        logs = self._log_ratios(again, arm)
        low, high = _bootstrap(logs)
        standard_error = math.sqrt(np.mean(logs**2) / len(logs))
        return math.expm1(max(abs(low), abs(high), standard_error))

    def _log_ratios(self, arm_a: str, arm_b: str) -> npt.NDArray[np.float64]:
        ratios: npt.NDArray[np.float64] = np.log(
            (self._speeds[arm_a] / self._speeds[arm_b]).to_numpy(np.float64)
        )
        return ratios


def baseline_rounds(
    rounds: pd.DataFrame, world_sizes: Sequence[int], source: str
) -> Rounds:
    """Return the rounds of the stage ``baseline`` for these gloo world sizes.

    Raises UserError as :class:`Rounds` does.
    """
    arms = baseline_arms(world_sizes)
    twins = [(arm.twin_of, arm.name) for arm in arms if arm.twin_of]
    return Rounds(rounds, [arm.name for arm in arms], twins, source)


def _bootstrap(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    rng = np.random.default_rng(RESAMPLING_SEED)
    picks = rng.integers(0, len(values), (NUM_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [0.05, 0.95])
    return float(low), float(high)
