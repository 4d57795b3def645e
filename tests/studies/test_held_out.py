"""Errors of predictions by hand, and validation of a model."""

import math

import pytest
from held_out import LEAST_COUNT, LEAST_PAIRS, Errors, errors, intervals, ratio_error


def test_errors_by_hand() -> None:
    # 10 % too much, 20 % too little, right: median 0.1, 95 % lies 0.9 of the way to 0.2
    found = errors([1.1, 0.8, 2.0], [1.0, 1.0, 2.0])
    assert found.count == 3
    assert found.median == pytest.approx(0.1)
    assert found.p95 == pytest.approx(0.19)
    assert found.worst == pytest.approx(0.2)


def test_verdict_needs_few_errors_of_many_settings() -> None:
    assert Errors(20, 0.08, 0.20, 0.5).is_believed
    assert not Errors(19, 0.01, 0.01, 0.01).is_believed
    assert not Errors(20, 0.081, 0.1, 0.1).is_believed
    assert not Errors(20, 0.01, 0.201, 0.3).is_believed


Pairs = dict[tuple[str, str], tuple[float, float]]


def apart(ratios: list[tuple[float, float]]) -> Pairs:
    """Return ratios of pairs that share no setting."""
    return {(f"one {i}", f"other {i}"): ratio for i, ratio in enumerate(ratios)}


def test_error_of_ratios_by_hand() -> None:
    # once twice as much as was measured, once half: both log 2
    found = ratio_error(apart([(4, 2), (1, 2)] * 10))
    assert found == (pytest.approx(math.log(2)), "95 % quantile")
    # for few pairs the maximum
    found = ratio_error(apart([(1, 2), *[(1, 1)] * (LEAST_COUNT - 2)]))
    assert found == (pytest.approx(math.log(2)), "largest")

    # and so are pairs that share a setting
    for shared in (("one 0", "other 1"), ("other 0", "one 0")):
        found = ratio_error({**apart([(1, 1)] * 30), shared: (4.0, 2.0)})
        assert found == (pytest.approx(math.log(2)), "largest")
    assert ratio_error(apart([(4, 2)] * (LEAST_PAIRS - 1))) is None


def test_interval_of_a_mean_by_hand() -> None:
    # of two rounds, 0 and 1, four draws are equally likely: means 0, 0.5, 0.5, 1
    found = intervals(lambda r: {"mean": sum(r) / len(r), "count": len(r)}, [0, 1], 400)
    assert found["mean"] == (0, 1)
    assert found["count"] == (2, 2)
