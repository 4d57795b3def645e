"""Validation of the model on settings that it was not fitted on.

The error of a prediction is |predicted - measured| / measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from least_squares import Array

# limits of the median and the 95 % quantile, and the least number of settings
MEDIAN, P95, LEAST_COUNT = 0.08, 0.20, 20
# least number of pairs for a bound on ratios
LEAST_PAIRS = 8
INTERVAL = (5, 95)
SEED = 35000

T = TypeVar("T")
Bound = Literal["largest", "95 % quantile"]


@dataclass(frozen=True)
class Errors:
    """Quantiles of ``count`` relative errors (linear interpolation), as fractions."""

    count: int
    median: float
    p95: float
    worst: float

    @property
    def is_believed(self) -> bool:
        """True if the errors are within the limits, for enough settings."""
        enough = self.count >= LEAST_COUNT
        return enough and self.median <= MEDIAN and self.p95 <= P95


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Return the errors of at least one prediction, pair by pair, of positive times."""
    found = np.abs(relative_errors(predicted, measured))
    median, p95 = (float(x) for x in np.quantile(found, [0.5, 0.95]))
    return Errors(len(found), median, p95, float(found.max()))


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> Array:
    """Return (predicted - measured) / measured, positive for overestimates."""
    return np.asarray(predicted, np.float64) / np.asarray(measured, np.float64) - 1


def ratio_error(
    pairs: Mapping[tuple[T, T], tuple[float, float]],
) -> tuple[float, Bound] | None:
    """Return the error of predicted ratios, as a difference of natural logarithms, and
    which quantile it is; None for fewer than LEAST_PAIRS pairs.

    ``pairs`` are ratios of two held-out settings: predicted, and measured. A 95 %
    quantile needs LEAST_COUNT pairs that share no setting.
    """
    if len(pairs) < LEAST_PAIRS:
        return None
    logs = [abs(np.log(predicted / measured)) for predicted, measured in pairs.values()]
    members = [member for pair in pairs for member in pair]
    shared = len(set(members)) < len(members)
    # errors of pairs with a common setting are correlated, and for few pairs the
    # quantile is below the maximum
    if shared or len(pairs) < LEAST_COUNT:
        return float(max(logs)), "largest"
    return float(np.quantile(logs, 0.95)), "95 % quantile"


def intervals(
    estimate: Callable[[Sequence[int]], Mapping[str, float]],
    rounds: Sequence[int],
    draws: int,
) -> dict[str, tuple[float, float]]:
    """Return the 5-95 % bootstrap interval of each number that ``estimate`` returns.

    It is called with resampled ``rounds``, as many as there are; measurements of the
    same round stay together.
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
