"""Least squares for durations: relative errors, nonnegative coefficients."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# tolerance, for columns scaled to length 1
TOLERANCE = 1e-12


def nonnegative(features: Any, target: Any, scale: Any = None) -> Array:
    """Return the coefficients (k,) >= 0 with the least sum of squares of ``(features @
    coefficients - target) / scale``.

    ``features`` is (m, k), ``target`` (m,), ``scale`` (m,) and positive; it defaults to
    the target, for relative errors. A feature that is zero everywhere gets 0. Active
    set method of Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    Raises ValueError for a scale that is not positive.
    """
    wanted = np.asarray(target, np.float64)
    weight = wanted if scale is None else np.asarray(scale, np.float64)
    if not (weight > 0).all():
        raise ValueError("least squares: the scale of every row must be positive")
    rows = np.asarray(features, np.float64) / weight[:, None]
    lengths = np.linalg.norm(rows, axis=0)
    # columns differ by twelve orders of magnitude: flops and calls
    rows = rows / np.where(lengths > 0, lengths, 1.0)
    found = _active_set(rows, wanted / weight)
    return found / np.where(lengths > 0, lengths, 1.0)


def _active_set(rows: Array, target: Array) -> Array:
    count = rows.shape[1]
    found = np.zeros(count)
    free = np.zeros(count, bool)
    for _ in range(10 * count):
        pull = np.where(free, -np.inf, rows.T @ (target - rows @ found))
        if pull.max(initial=-np.inf) <= TOLERANCE:
            break
        free[pull.argmax()] = True
        found, free = _feasible(rows, target, found, free)
    return found


def _feasible(
    rows: Array, target: Array, found: Array, free: npt.NDArray[np.bool_]
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Solve for the ``free`` coefficients, dropping any that would become negative."""
    free = free.copy()
    while True:
        best = np.zeros_like(found)
        best[free] = np.linalg.lstsq(rows[:, free], target)[0]
        below = free & (best <= 0)
        if not below.any():
            return best, free
        # move towards it until a coefficient becomes zero
        step = (found[below] / (found[below] - best[below])).min()
        found = found + step * (best - found)
        free &= found > TOLERANCE
        found[~free] = 0.0
