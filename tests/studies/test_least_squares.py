"""Nonnegative least squares, against all subsets of features."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from least_squares import Array, nonnegative


def test_errors_count_relative_to_the_scale() -> None:
    # 1 and 3 by one constant: without weights 2, relative to 1 and 1e6 almost 1
    assert nonnegative([[1], [1]], [1, 3], [1, 1]) == pytest.approx([2])
    assert nonnegative([[1], [1]], [1, 3], [1, 1e6]) == pytest.approx([1])


def squares(rows: Array, target: Array, found: Array) -> float:
    return float(((rows @ found - target) ** 2).sum())


def best_of_subsets(rows: Array, target: Array) -> float:
    """Return the least squares over all subsets whose best fit is nonnegative."""
    count = rows.shape[1]
    least = squares(rows, target, np.zeros(count))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            found = np.zeros(count)
            found[list(chosen)] = np.linalg.lstsq(rows[:, chosen], target)[0]
            if (found >= 0).all():
                least = min(least, squares(rows, target, found))
    return least


NUMBERS = st.integers(-9, 9).map(float)


@given(st.lists(st.tuples(*[NUMBERS] * 4), min_size=3, max_size=7))
def test_nothing_that_is_allowed_is_better(table: list[tuple[float, ...]]) -> None:
    rows = np.array([row[:3] for row in table])
    target = np.array([row[3] for row in table])
    found = nonnegative(rows, target, np.ones(len(table)))
    assert (found >= 0).all()
    best = best_of_subsets(rows, target)
    assert squares(rows, target, found) == pytest.approx(best, abs=1e-8)
