"""Errors of predictions by hand, and when a model is believed."""

import math

import pytest

from minitrain.analysis.held_out import (
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


def test_error_of_ratios_by_hand() -> None:
    # once twice as much as was measured, once half: both log 2
    assert ratio_error([(4, 2), (1, 2)] * 4) == pytest.approx(math.log(2))
    assert ratio_error([(3, 3)] * 8) == 0


def test_few_ratios_say_nothing() -> None:
    assert ratio_error([(4, 2)] * (LEAST_PAIRS - 1)) is None
    assert ratio_error([]) is None


def test_interval_of_a_mean_by_hand() -> None:
    # of two rounds, 0 and 1, four draws are equally likely: means 0, 0.5, 0.5, 1
    found = intervals(lambda r: {"mean": sum(r) / len(r), "count": len(r)}, [0, 1], 400)
    assert found["mean"] == (0, 1)
    assert found["count"] == (2, 2)
    assert intervals(lambda r: {"mean": sum(r)}, [3], 10)["mean"] == (3, 3)
