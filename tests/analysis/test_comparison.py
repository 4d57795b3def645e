import numpy as np
import pandas as pd
import pytest
from report_inputs import arms, rounds

from minitrain.analysis.comparison import Comparison, Rounds, baseline_rounds
from minitrain.core.errors import UserError

UNDECIDED = "no difference seen"


def baseline(table: pd.DataFrame) -> Rounds:
    return baseline_rounds(table, (1, 2), "rounds.csv")


def exact(num_rounds: int = 5, **speeds: float) -> pd.DataFrame:
    """Rounds without noise, only with the drift of the machine."""
    return rounds(arms([1, 2], **speeds), num_rounds=num_rounds, noise=0)


def twin_seconds(
    table: pd.DataFrame, factors: list[float], arm: str = "gloo-2"
) -> pd.DataFrame:
    """Set the seconds of an A/A duplicate to ``factors`` times the arm's seconds."""
    table = table.copy()
    subject = table.loc[table["arm"] == arm, "seconds"].to_numpy()
    table.loc[table["arm"] == f"{arm}-again", "seconds"] = subject * np.array(factors)
    return table


@pytest.mark.parametrize("pair", ["gloo-2", "gloo-2-no-sync", "one_process"])
def test_noise_floor_is_that_of_the_worst_pair(pair: str) -> None:
    """Identical arms can differ systematically, in some pairs only."""
    # the farther end of the interval, in both directions
    for factor in (1.03, 1 / 1.03):
        measured = baseline(twin_seconds(exact(), [factor] * 5, pair))
        assert measured.noise_floor() == pytest.approx(0.03)
        assert measured.compare("gloo-2", "one_process").num_pairs == 3


def test_spread_is_the_median_over_arms() -> None:
    table = exact()
    speeds = {
        "one_process": [100, 100, 100, 100, 100],
        "gloo-2": [100, 200, 300, 400, 500],
        "gloo-2-no-sync": [100, 110, 120, 130, 140],
    }
    for arm, values in speeds.items():
        table.loc[table["arm"] == arm, "seconds"] = [4_000 / v for v in values]
    arms_ = [*speeds]
    measured = Rounds(table, arms_, [("gloo-2", "gloo-2")], "rounds.csv")
    # of the third arm p5 is 100 + 0.2 x 10, p95 140 - 0.2 x 10
    assert measured.spread() == pytest.approx(138 / 102 - 1)


def test_scaling_interpolates_linearly() -> None:
    # arms of an earlier setting are left out
    table = rounds(arms([1, 2, 4]) | arms([1, 2]), num_rounds=5)
    assert set(baseline(table).scaling()["arm"]) == {*arms([1, 2])}
    mine = table["arm"] == "gloo-2"
    table.loc[mine, "tokens"] = 600
    table.loc[mine, "seconds"] = [6.0, 3.0, 2.0, 1.5, 0.6]
    row = baseline(table).scaling().set_index("arm").loc["gloo-2"]
    # speeds 100, 200, 300, 400, 1000: the 5 % quantile lies 0.05 x 4 = 0.2 of the way
    # from the first to the second, 100 + 0.2 x 100; the mean would be 400
    assert baseline(table).tokens_per_s("gloo-2") == pytest.approx(300)
    assert row["tokens_per_s_p5"] == pytest.approx(120)
    assert row["tokens_per_s_p50"] == pytest.approx(300)
    assert row["tokens_per_s_p95"] == pytest.approx(880)
    assert (row["processes"], row["threads"]) == (2, 1)


def test_ratio_is_paired_so_that_drift_cancels() -> None:
    measured = baseline(exact(one_process=10_000, gloo_2=16_000))
    there = measured.compare("gloo-2", "one_process")
    assert (there.ratio, there.low, there.high) == pytest.approx((1.6, 1.6, 1.6))
    assert (there.num_rounds, there.verdict) == (5, "faster")
    assert measured.compare("one_process", "gloo-2").verdict == "slower"


def test_ratio_is_a_median_within_its_interval() -> None:
    """One disturbed round of five moves neither ratio nor bounds."""
    factors = [1.1, 1.2, 1.3, 1.4, 4.0]
    table = exact(gloo_2=10_000, one_process=10_000)
    mine = table["arm"] == "gloo-2"
    table.loc[mine, "seconds"] = table.loc[mine, "seconds"].to_numpy() / factors
    compared = baseline(table).compare("gloo-2", "one_process")
    # the mean would be 1.8, the geometric mean 1.57
    assert compared.ratio == pytest.approx(1.3)
    # at least three of five draws are the smallest in 5.8 % of the cases, and so for
    # the largest
    assert compared.low == pytest.approx(1.1)
    assert compared.high == pytest.approx(4.0)


def test_noise_floor_counts_a_disturbed_round() -> None:
    # 19 twins are equal, so every bootstrap median is 1; one took 1.5 times as long:
    # sqrt(log(1.5)^2 / 20 / 20) = log(1.5) / 20
    table = twin_seconds(exact(num_rounds=20), [1.0] * 19 + [1.5])
    assert baseline(table).noise_floor() == pytest.approx(1.5 ** (1 / 20) - 1)


def test_a_difference_below_the_floor_is_never_called_faster() -> None:
    table = twin_seconds(exact(one_process=10_000, gloo_2=10_150), [1.02] * 5)
    compared = baseline(table).compare("gloo-2", "one_process")
    assert compared.low > 1
    assert compared.ratio == pytest.approx(1.015)
    assert compared.noise_floor == pytest.approx(0.02)
    assert compared.verdict == UNDECIDED


@pytest.mark.parametrize(
    ("ratio", "low", "high", "floor", "verdict"),
    [
        (1.05, 1.03, 1.07, 0.02, "faster"),
        (1.05, 0.99, 1.07, 0.02, UNDECIDED),
        (1.05, 1.03, 1.07, 0.06, UNDECIDED),
        (0.95, 0.93, 0.97, 0.02, "slower"),
        # 1 / 0.95 - 1 = 0.0526: the other arm leads by less than the floor
        (0.95, 0.93, 0.97, 0.053, UNDECIDED),
        (1.0, 1.0, 1.0, 0.0, UNDECIDED),
    ],
)
def test_verdict_needs_interval_and_floor(
    ratio: float, low: float, high: float, floor: float, verdict: str
) -> None:
    compared = Comparison("a", "b", 1.0, 1.0, ratio, low, high, floor, 1, 20)
    assert compared.verdict == verdict


def test_incomplete_rounds_are_refused() -> None:
    whole = exact()
    for spoilt in (
        whole[whole["arm"] != "gloo-2-again"],
        whole[(whole["round"] != 3) | (whole["arm"] != "gloo-2")],
        whole[whole["round"] < 4],
        whole.drop(columns="seconds"),
        whole.assign(tokens=float("nan")),
    ):
        with pytest.raises(UserError, match=r"rounds\.csv: damaged"):
            baseline(spoilt)
