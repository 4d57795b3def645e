"""Whether a model is to be believed: how far off it is where it was not fitted.

The error of a prediction is |predicted - measured| / measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from least_squares import Array

# what a median and a 95 % quantile must not exceed, and what they must rest on
MEDIAN, P95, LEAST_COUNT = 0.08, 0.20, 20
# what a bound on ratios must rest on
LEAST_PAIRS = 8
INTERVAL = (5, 95)
SEED = 35000

T = TypeVar("T")
Bound = Literal["largest", "95 % quantile"]


@dataclass(frozen=True)
class Errors:
    """Quantiles of ``count`` relative errors (linear interpolation), as shares of 1."""

    count: int
    median: float
    p95: float
    worst: float

    @property
    def is_believed(self) -> bool:
        """Whether they are few enough, of enough settings."""
        enough = self.count >= LEAST_COUNT
        return enough and self.median <= MEDIAN and self.p95 <= P95


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """The errors of predictions, pair by pair; at least one, of positive times."""
    found = np.abs(relative_errors(predicted, measured))
    median, p95 = (float(x) for x in np.quantile(found, [0.5, 0.95]))
    return Errors(len(found), median, p95, float(found.max()))


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> Array:
    """(predicted - measured) / measured: above zero where too much was predicted."""
    return np.asarray(predicted, np.float64) / np.asarray(measured, np.float64) - 1


def ratio_error(
    pairs: Mapping[tuple[T, T], tuple[float, float]],
) -> tuple[float, Bound] | None:
    """How wrong predicted ratios are, as a difference of natural logarithms, and which
    of the differences that is; None where fewer than LEAST_PAIRS say nothing of it.

    ``pairs`` are ratios of two settings that were both held out: predicted, and
    measured. A 95 % quantile needs LEAST_COUNT that share no setting.
    """
    if len(pairs) < LEAST_PAIRS:
        return None
    logs = [abs(np.log(predicted / measured)) for predicted, measured in pairs.values()]
    members = [member for pair in pairs for member in pair]
    shared = len(set(members)) < len(members)
    # what shares a member errs together, and of a few the quantile lies below the worst
    if shared or len(pairs) < LEAST_COUNT:
        return float(max(logs)), "largest"
    return float(np.quantile(logs, 0.95)), "95 % quantile"


def intervals(
    estimate: Callable[[Sequence[int]], Mapping[str, float]],
    rounds: Sequence[int],
    draws: int,
) -> dict[str, tuple[float, float]]:
    """The 5-95 % bootstrap interval of each number that ``estimate`` makes of rounds.

    It is called with as many of ``rounds`` as there are, drawn with repetition; what
    was measured side by side stays together.
    """
    rng = np.random.default_rng(SEED)
    found = [
        estimate([int(one) for one in rng.choice(rounds, len(rounds))])
        for _ in range(draws)
    ]
    bounds = {
        name: np.percentile([one[name] for one in found], INTERVAL) for name in found[0]
    }
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}
