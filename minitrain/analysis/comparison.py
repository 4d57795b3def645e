"""Speed comparison of arms: configurations timed in turns, in rounds of one run.

Arms are compared within a round, so that a temporary slowdown of the machine affects
both. Arms measured twice (A/A tests) give the noise floor: how far the interval of any
such pair reaches. Smaller differences are not reported. Swapping two arms gives exactly
the inverse ratio, since ratios are kept as logarithms.
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

# with fewer pairs a bootstrap interval of the median is meaningless
MIN_ROUNDS = 5
NUM_RESAMPLES = 2000
RESAMPLING_SEED = 35000


class SpeedVerdict(StrEnum):
    """Speed of one arm relative to another."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "no difference seen"


@dataclass(frozen=True)
class Comparison:
    """Speed of arm A relative to arm B.

    ``ratio`` is the median over the rounds of A's tokens per second divided by B's in
    the same round (geometric mean of the middle two if their number is even); ``low``
    and ``high`` are its 5 % and 95 % bootstrap bounds. ``noise_floor`` is the
    largest relative difference that ``num_pairs`` A/A pairs do not exclude.
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
        """True if the interval does not contain 1."""
        return self.low > 1 or self.high < 1

    @property
    def verdict(self) -> SpeedVerdict:
        """Verdict on arm A: UNDECIDED if 1 is in the interval, or within the floor."""
        lead = max(self.ratio, 1 / self.ratio) - 1
        if not (self.excludes_one and lead > self.noise_floor):
            return SpeedVerdict.UNDECIDED
        return SpeedVerdict.FASTER if self.ratio > 1 else SpeedVerdict.SLOWER

    @property
    def decided(self) -> bool:
        """True if one of the arms is faster."""
        return self.verdict is not SpeedVerdict.UNDECIDED


class Rounds:
    """Interleaved timings of arms, checked and arranged for comparison.

    ``rounds`` has one row per round and arm with the columns of ``COLUMNS``: tokens are
    target tokens without padding, seconds are wall time. Rows of arms not in ``arms``
    are ignored; ``repeats`` are the A/A pairs, an arm and its duplicate. Raises
    UserError, which names the file ``source``, if an arm has fewer than ``MIN_ROUNDS``
    rounds or misses one.
    """

    def __init__(
        self,
        rounds: pd.DataFrame,
        arms: Sequence[str],
        repeats: Sequence[tuple[str, str]],
        source: str,
    ) -> None:
        self.repeats = repeats
        with reading(Path(source)):
            mine = rounds[rounds["arm"].isin(arms)]
            self._shapes = mine.groupby("arm")[["processes", "threads"]].first()
            mine = mine.assign(tokens_per_s=mine["tokens"] / mine["seconds"])
            speeds = mine.pivot(index="round", columns="arm", values="tokens_per_s")
            self._speeds = speeds.reindex(columns=[*arms])
            self.num_rounds = len(speeds)
            if self._speeds.isna().any(axis=None) or self.num_rounds < MIN_ROUNDS:
                raise ValueError(f"every arm needs at least {MIN_ROUNDS} rounds")

    def tokens_per_s(self, arm: str) -> float:
        """Return the median tokens per second of ``arm`` over the rounds."""
        return float(self._speeds[arm].median())

    def scaling(self) -> pd.DataFrame:
        """Return a row per arm (timed configuration): arm, processes, threads, and the
        percentiles over the rounds, tokens_per_s_p5, _p50 and _p95.
        """
        spread = self._speeds.quantile([0.05, 0.5, 0.95]).T
        spread.columns = pd.Index([f"tokens_per_s_{p}" for p in ("p5", "p50", "p95")])
        shapes = self._shapes.loc[spread.index]
        return shapes.join(spread).rename_axis("arm").reset_index()

    def noise_floor(self) -> float:
        """Return the smallest relative difference worth reporting, such as 0.02.

        It is the largest of all A/A pairs. For each pair: the larger distance from 1 of
        the two bounds of the ratio's 5-95 % bootstrap interval, but at least the
        standard error of the mean difference (root mean square divided by the square
        root of the number of rounds), since a median ignores a disturbed round.
        """
        return max(self._floor(again, arm) for arm, again in self.repeats)

    def spread(self) -> float:
        """Return p95 / p5 - 1 of an arm's speeds over the rounds, median over arms."""
        low, high = self._speeds.quantile([0.05, 0.95]).to_numpy()
        return float(np.median(high / low - 1))

    def compare(self, arm_a: str, arm_b: str) -> Comparison:
        """Return the speed of ``arm_a`` relative to ``arm_b``, compared by rounds."""
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
            num_pairs=len(self.repeats),
            num_rounds=self.num_rounds,
        )

    def _floor(self, again: str, arm: str) -> float:
        logs = self._log_ratios(again, arm)
        low, high = _bootstrap(logs)
        standard_error = math.sqrt(np.mean(logs**2) / len(logs))
        return math.expm1(max(abs(low), abs(high), standard_error))

    def _log_ratios(self, arm_a: str, arm_b: str) -> npt.NDArray[np.float64]:
        ratios = self._speeds[arm_a] / self._speeds[arm_b]
        return np.log(ratios.to_numpy(np.float64))


def baseline_rounds(
    rounds: pd.DataFrame, world_sizes: Sequence[int], source: str
) -> Rounds:
    """Return the :class:`Rounds` of stage ``baseline`` for gloo ``world_sizes``, from
    its ``rounds``, the rows of file ``source``. Raises UserError as :class:`Rounds`.
    """
    arms = baseline_arms(world_sizes)
    repeats = [(arm.repeat_of, arm.name) for arm in arms if arm.repeat_of]
    return Rounds(rounds, [arm.name for arm in arms], repeats, source)


def _bootstrap(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    rng = np.random.default_rng(RESAMPLING_SEED)
    picks = rng.integers(0, len(values), (NUM_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [0.05, 0.95])
    return float(low), float(high)
