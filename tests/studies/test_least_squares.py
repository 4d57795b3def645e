"""Nonnegative least squares, by the conditions of Karush, Kuhn and Tucker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from least_squares import nonnegative


def test_errors_count_relative_to_the_scale() -> None:
    # 1 and 3 by one constant: without weights 2, relative to 1 and 1e6 almost 1
    assert nonnegative([[1], [1]], [1, 3], [1, 1]) == pytest.approx([2])
    assert nonnegative([[1], [1]], [1, 3], [1, 1e6]) == pytest.approx([1])


NUMBERS = st.integers(-9, 9).map(float)


@given(st.lists(st.tuples(*[NUMBERS] * 4), min_size=3, max_size=7))
def test_nothing_that_is_allowed_is_better(table: list[tuple[float, ...]]) -> None:
    rows = np.array([row[:3] for row in table])
    target = np.array([row[3] for row in table])
    found = nonnegative(rows, target, np.ones(len(table)))
    assert (found >= 0).all()
    # a larger coefficient makes the sum larger, and so does a smaller one that may be
    slope = rows.T @ (rows @ found - target)
    assert (slope > -1e-8).all()
    assert found * slope == pytest.approx(0, abs=1e-8)
