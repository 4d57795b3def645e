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
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from minitrain.core.errors import UserError

Verdict = Literal["faster", "slower", "no difference seen"]

COLUMNS = ("round", "arm", "processes", "threads", "world_size", "tokens", "seconds")
ONE_PROCESS = "one_process"
ALL_CORES = "one_process_all_cores"
NO_SYNC, AGAIN, TIMED = "-no-sync", "-again", "-timed"

# a bootstrap interval of a median says little below this many pairs
MIN_ROUNDS = 5
NUM_RESAMPLES = 2000
RESAMPLING_SEED = 35000


def ddp_arm(world_size: int) -> str:
    """Name of the stock-DDP arm with ``world_size`` gloo processes."""
    return f"gloo-{world_size}"


def expected_arms(world_sizes: Sequence[int]) -> list[str]:
    """Arms that every round must hold when these gloo world sizes are asked for."""
    arms = [ONE_PROCESS, ALL_CORES]
    for world_size in sorted(set(world_sizes) - {1}):
        arms += [ddp_arm(world_size), ddp_arm(world_size) + NO_SYNC]
    largest = ddp_arm(max(world_sizes))
    arms += [largest] if largest not in arms else []
    return [*arms, *(again for _, again in twins_of(world_sizes)), largest + TIMED]


def twins_of(world_sizes: Sequence[int]) -> list[tuple[str, str]]:
    """The A/A pairs when these gloo world sizes are asked for: arm, and its twin."""
    largest = ddp_arm(max(world_sizes))
    silent = [largest + NO_SYNC] if max(world_sizes) > 1 else []
    return [(arm, arm + AGAIN) for arm in (largest, *silent, ONE_PROCESS)]


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
    def verdict(self) -> Verdict:
        """Of arm A: decided only by an interval without 1 *and* beyond the floor."""
        if not (self.excludes_one and self.exceeds_floor):
            return "no difference seen"
        return "faster" if self.ratio > 1 else "slower"


class Rounds:
    """Arms that were timed side by side, ready to be compared.

    ``rounds`` has one row per round and arm with the columns of ``COLUMNS``: tokens
    are real target tokens, seconds wall time. Arms that are not among ``arms`` are
    left out. ``twins`` are the A/A pairs: an arm, and the same once more. Raises
    UserError, naming ``source``, where a column, a round of an arm or a positive time
    is missing, an arm is doubled, or rounds are too few.
    """

    def __init__(
        self,
        rounds: pd.DataFrame,
        arms: Sequence[str],
        twins: Sequence[tuple[str, str]],
        source: str,
    ) -> None:
        self.twins, self.source = twins, source
        _check(rounds, arms, source)
        self._rounds = rounds[rounds["arm"].isin(arms)].assign(
            tokens_per_s=lambda table: table["tokens"] / table["seconds"]
        )
        self._speeds = self._rounds.pivot(
            index="round", columns="arm", values="tokens_per_s"
        )[list(arms)]
        _check_complete(self._speeds, source)

    @property
    def num_rounds(self) -> int:
        """Rounds in which every arm took its turn."""
        return len(self._speeds)

    def tokens_per_s(self, arm: str) -> float:
        """Median tokens per second of ``arm``; UserError where it was not measured."""
        return float(self._arm(arm).median())

    def scaling(self) -> pd.DataFrame:
        """One row per arm: arm, processes, threads and tokens_per_s p5, p50, p95."""
        shape = self._rounds.groupby("arm")[["processes", "threads"]].first()
        spread = self._speeds.quantile([0.05, 0.5, 0.95]).T
        spread.columns = pd.Index([f"tokens_per_s_{p}" for p in ("p5", "p50", "p95")])
        return shape.loc[spread.index].join(spread).rename_axis("arm").reset_index()

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
        """Compare two arms round by round; UserError where one was not measured."""
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

    def _arm(self, arm: str) -> "pd.Series[float]":
        if arm not in self._speeds:
            measured = ", ".join(self._speeds.columns)
            raise UserError(f"{self.source}: no arm {arm}; it holds {measured}")
        return self._speeds[arm]

    def _log_ratios(self, arm_a: str, arm_b: str) -> npt.NDArray[np.float64]:
        ratios: npt.NDArray[np.float64] = np.log(
            (self._arm(arm_a) / self._arm(arm_b)).to_numpy(np.float64)
        )
        return ratios


class Baseline(Rounds):
    """The rounds of the baseline stage: the arms that ``world_sizes`` ask for. Raises
    UserError as :class:`Rounds` does.
    """

    def __init__(
        self, rounds: pd.DataFrame, world_sizes: Sequence[int], source: str
    ) -> None:
        self.subject = ddp_arm(max(world_sizes))
        twins = twins_of(world_sizes)
        super().__init__(rounds, expected_arms(world_sizes), twins, source)

    def instrumentation_cost(self) -> Comparison:
        """The largest DDP arm with the timing hook against the same arm without."""
        return self.compare(self.subject + TIMED, self.subject)


def _bootstrap(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    rng = np.random.default_rng(RESAMPLING_SEED)
    picks = rng.integers(0, len(values), (NUM_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [0.05, 0.95])
    return float(low), float(high)


def _check(rounds: pd.DataFrame, arms: Sequence[str], source: str) -> None:
    for column in COLUMNS:
        if column not in rounds:
            allowed = ", ".join(COLUMNS)
            raise UserError(f"{source}: no column {column}; it must have {allowed}")
    present = set(rounds["arm"])
    for arm in arms:
        if arm not in present:
            raise UserError(f"{source}: no arm {arm}; every round must hold it")
    for column in ("tokens", "seconds"):
        values = rounds[column]
        for row in _rows(rounds[~((values > 0) & np.isfinite(values))]):
            where = f"{source}: round {row['round']}, arm {row['arm']}"
            raise UserError(f"{where}: {column} = {row[column]}: must be positive")
    doubled = rounds[rounds.duplicated(["round", "arm"])]
    for row in _rows(doubled):
        raise UserError(f"{source}: round {row['round']} holds {row['arm']} twice")


def _check_complete(speeds: pd.DataFrame, source: str) -> None:
    for arm in speeds:
        for number in speeds.index[speeds[arm].isna()]:
            raise UserError(f"{source}: round {number} has no arm {arm}")
    if len(speeds) < MIN_ROUNDS:
        allowed = f"at least {MIN_ROUNDS} are needed to compare"
        raise UserError(f"{source}: {len(speeds)} rounds; {allowed}")


def _rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.to_dict("records")
