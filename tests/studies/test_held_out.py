"""Errors of predictions by hand, and when a model is believed."""

import math

import pytest
from held_out import (
    LEAST_COUNT,
    LEAST_PAIRS,
    Errors,
    errors,
    intervals,
    ratio_error,
)


def test_errors_by_hand() -> None:
    # 10 % too much, 20 % too little, right: median 0.1, 95 % lies 0.9 of the way to 0.2
    found = errors([1.1, 0.8, 2.0], [1.0, 1.0, 2.0])
    assert found.count == 3
    assert found.median == pytest.approx(0.1)
    assert found.p95 == pytest.approx(0.19)
    assert found.worst == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("found", "believed"),
    [
        (Errors(20, 0.08, 0.20, 0.5), True),
        (Errors(19, 0.01, 0.01, 0.01), False),
        (Errors(20, 0.081, 0.1, 0.1), False),
        (Errors(20, 0.01, 0.201, 0.3), False),
    ],
)
def test_verdict_needs_few_errors_of_many_settings(
    found: Errors, believed: bool
) -> None:
    assert found.is_believed is believed


Pairs = dict[tuple[str, str], tuple[float, float]]


def apart(ratios: list[tuple[float, float]]) -> Pairs:
    """Ratios of pairs that share no setting."""
    return {(f"one {i}", f"other {i}"): ratio for i, ratio in enumerate(ratios)}


def test_error_of_ratios_by_hand() -> None:
    # once twice as much as was measured, once half: both log 2
    found = ratio_error(apart([(4, 2), (1, 2)] * 10))
    assert found == (pytest.approx(math.log(2)), "95 % quantile")
    assert ratio_error(apart([(3, 3)] * 20)) == (0, "95 % quantile")


def test_of_many_pairs_that_share_nothing_one_may_be_worse() -> None:
    # 19 are right, and one twice as much: 95 % lies 0.05 of the way to it
    found = ratio_error(apart([(4, 2), *[(1, 1)] * (LEAST_COUNT - 1)]))
    assert found == (pytest.approx(0.05 * math.log(2)), "95 % quantile")


def test_few_pairs_are_as_wrong_as_the_worst() -> None:
    found = ratio_error(apart([(1, 2), *[(1, 1)] * (LEAST_COUNT - 2)]))
    assert found == (pytest.approx(math.log(2)), "largest")


@pytest.mark.parametrize("shared", [("one 0", "other 1"), ("other 0", "one 0")])
def test_pairs_that_share_a_setting_are_as_wrong_as_the_worst(
    shared: tuple[str, str],
) -> None:
    found = ratio_error({**apart([(1, 1)] * 30), shared: (4.0, 2.0)})
    assert found == (pytest.approx(math.log(2)), "largest")


def test_few_ratios_say_nothing() -> None:
    assert ratio_error(apart([(4, 2)] * (LEAST_PAIRS - 1))) is None
    assert ratio_error({}) is None


def test_interval_of_a_mean_by_hand() -> None:
    # of two rounds, 0 and 1, four draws are equally likely: means 0, 0.5, 0.5, 1
    found = intervals(lambda r: {"mean": sum(r) / len(r), "count": len(r)}, [0, 1], 400)
    assert found["mean"] == (0, 1)
    assert found["count"] == (2, 2)
    assert intervals(lambda r: {"mean": sum(r)}, [3], 10)["mean"] == (3, 3)
