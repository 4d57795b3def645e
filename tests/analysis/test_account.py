"""The step account of made-up timings, with every mean worked out by hand."""

from typing import Any

import pandas as pd
import pytest

from minitrain.analysis.account import (
    BOOTSTRAP_DRAWS,
    PARTS,
    account,
    account_intervals,
    ddp_says,
    summarize,
    summarized,
)

WARMUP = 10
# a step that was hashed, and one right after a checkpoint
DISTURBED = ("recorded", "after_interruption")
MS = 1_000_000


def row(step: int, rank: int, kind: str, **values: Any) -> dict[str, Any]:
    """One step of one rank; not disturbed, 50 tokens."""
    fixed = {"step": step, "rank": rank, "kind": kind, "tokens": 50}
    return fixed | dict.fromkeys(DISTURBED, False) | values


def plain(step: int, rank: int, step_ms: float, **values: Any) -> dict[str, Any]:
    """A plain step, whose last bucket is handed over at 1 s on both ranks."""
    times = {"comm_total_ms": 8.0, "comm_hidden_ms": 6.0, "last_bucket_at_ns": 10**9}
    return row(step, rank, "plain", step_ms=step_ms, **(times | values))


def instrumented(step: int, rank: int, **values: Any) -> dict[str, Any]:
    parts = {
        "data_ms": 1.0,
        "wait_ms": 2.0,
        "forward_ms": 20.0,
        "backward_ms": 70.0,
        "to_last_bucket_ms": 60.0,
        "comm_exposed_ms": 10.0,
        "optimizer_ms": 4.0,
        "step_ms": 97.0,
    }
    return row(step, rank, "instrumented", **(parts | values))


def bracketed(step: int, rank: int, **values: Any) -> dict[str, Any]:
    parts = {"backward_ms": 75.0, "backward_compute_ms": 55.0, "step_ms": 100.0}
    return row(step, rank, "bracketed", **(parts | values))


def clean_rows() -> list[dict[str, Any]]:
    """Two ranks, steps 10 to 13: plain, bracketed, plain, instrumented.

    Plain steps take rank 0 90 and 98 ms, rank 1 100 and 96 ms.
    """
    return [
        plain(10, 0, 90, tokens=40),
        plain(10, 1, 100, tokens=60, last_bucket_at_ns=10**9 + 4 * MS),
        bracketed(11, 0, backward_compute_ms=50, backward_ms=70),
        bracketed(11, 1, backward_compute_ms=60, backward_ms=80),
        plain(12, 0, 98, comm_total_ms=10, comm_hidden_ms=4),
        plain(12, 1, 96, comm_total_ms=14, last_bucket_at_ns=10**9 - 2 * MS),
        instrumented(13, 0, data_ms=0, forward_ms=18, to_last_bucket_ms=58),
        instrumented(13, 1, comm_exposed_ms=14),
    ]


def misleading_rows() -> list[dict[str, Any]]:
    """Rows that no number may hold: warm-up, steps that were hashed, and one after a
    checkpoint.
    """
    absurd = dict.fromkeys(PARTS, 9e9)
    times = {"comm_total_ms": 9e9, "comm_hidden_ms": 9e9, "to_last_bucket_ms": 9e9}
    rows = []
    for rank in (0, 1):
        steps = {0: "recorded", 3: "", 9: "", 20: DISTURBED[0], 21: DISTURBED[1]}
        for step, why in steps.items():
            for kind in ("plain", "instrumented", "bracketed"):
                values = {**absurd, **times, "step_ms": 9e9, "backward_ms": 75.0}
                values |= {name: name == why for name in DISTURBED}
                values["tokens"] = 10**9
                values["last_bucket_at_ns"] = 9 * 10**9 * rank
                rows.append(row(step, rank, kind, **values))
    return rows


def timings(*more: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([*misleading_rows(), *clean_rows(), *more])


def test_warmup_and_disturbed_steps_are_left_out() -> None:
    assert set(summarized(timings(), WARMUP)["step"]) == {10, 11, 12, 13}


def test_account_by_hand() -> None:
    result = account(timings(), WARMUP)
    parts = {
        "data_ms": 0.5,  # 0 and 1
        "wait_ms": 2.0,
        "forward_ms": 19.0,  # 18 and 20
        "backward_compute_ms": 55.0,  # 50 and 60, from the bracketed steps
        "interference_ms": 4.0,  # 58 and 60 to the last bucket, 59, less 55
        "comm_exposed_ms": 12.0,  # 10 and 14
        "optimizer_ms": 4.0,
    }
    assert {name: result[name] for name in PARTS} == pytest.approx(parts)
    # 0.5 + 2 + 19 + 55 + 4 + 12 + 4
    assert result["sum_ms"] == pytest.approx(96.5)
    # 90, 100, 98, 96
    assert result["plain_step_ms"] == pytest.approx(96.0)
    assert result["gap_pct"] == pytest.approx(100 * 0.5 / 96)
    assert result["closed"] is True


@pytest.mark.parametrize(
    ("wait_ms", "gap_pct", "closed"),
    [
        # without the wait of 2 ms the parts are 94.5; plain steps take 96
        pytest.param(6.25, 100 * 4.75 / 96, True, id="just below 5 % over"),
        pytest.param(6.35, 100 * 4.85 / 96, False, id="just above 5 % over"),
        pytest.param(-3.25, -100 * 4.75 / 96, True, id="just above 5 % under"),
        pytest.param(-3.35, -100 * 4.85 / 96, False, id="just below 5 % under"),
    ],
)
def test_closed_within_five_percent(
    wait_ms: float, gap_pct: float, closed: bool
) -> None:
    table = timings()
    table["wait_ms"] = table["wait_ms"].where(table["step"] != 13, wait_ms)
    result = account(table, WARMUP)
    assert result["gap_pct"] == pytest.approx(gap_pct)
    assert result["closed"] is closed


def test_parts_are_means_so_that_they_add_up() -> None:
    more = [bracketed(15, rank, backward_compute_ms=100) for rank in (0, 1)]
    result = account(timings(*more), WARMUP)
    # 50, 60, 100, 100: the mean is 77.5, the median 80
    assert result["backward_compute_ms"] == pytest.approx(77.5)
    assert result["interference_ms"] == pytest.approx(59 - 77.5)


UNKNOWN_WITHOUT = {
    "plain": ["plain_step_ms"],
    "bracketed": ["backward_compute_ms", "interference_ms"],
    "instrumented": [name for name in PARTS if name != "backward_compute_ms"],
}


@pytest.mark.parametrize("kind", UNKNOWN_WITHOUT)
def test_kind_without_steps_leaves_numbers_unknown(kind: str) -> None:
    table = timings()
    result = account(table[table["kind"] != kind], WARMUP)
    unknown = [name for name, value in result.items() if value is None]
    sums = ["sum_ms", "gap_pct", "closed"]
    assert sorted(unknown) == sorted([*UNKNOWN_WITHOUT[kind], *sums])
    intervals = account_intervals(table[table["kind"] != kind], WARMUP)
    without = intervals[intervals["low_ms"].isna()]
    assert [*without["part"]] == [part for part in PARTS if part in unknown]
    assert without[["mean_ms", "high_ms"]].isna().all(axis=None)


def test_account_of_a_run_without_communication() -> None:
    columns = [name for name in timings() if "comm" in name or "bucket" in name]
    without = timings().drop(columns=columns)
    summary = summarize(without, WARMUP)
    names = ["allreduce_p50_ms", "allreduce_p95_ms", "overlap", "skew_p50_ms"]
    assert [summary[name] for name in names] == [None] * 4
    result = account(without, WARMUP)
    assert (result["interference_ms"], result["comm_exposed_ms"]) == (None, None)
    assert result["forward_ms"] == pytest.approx(19)
    assert result["closed"] is None


def test_ddps_own_log_beside_the_clock() -> None:
    logged = [plain(14, 0, 90, forward_ms=20, ddp_forward_ms=18)]
    logged += [plain(16, 1, 90, forward_ms=20, ddp_forward_ms=20)]
    # only plain steps count, in which no barrier lies between forward and backward
    others = [instrumented(15, 0, ddp_forward_ms=9e9, forward_ms=9e9)]
    says = ddp_says(timings(*logged, *others), WARMUP)
    forward = {"ddp": 19, "ours": 20, "difference_pct": -5}
    assert says.pop("forward_ms") == pytest.approx(forward)
    missing = {"ddp": None, "ours": None, "difference_pct": None}
    assert list(says) == ["backward_ms", "backward_compute_ms", "comm_ms"]
    assert all(said == missing for said in says.values())


def test_nothing_left_to_summarize() -> None:
    result = account(timings(), 1000)
    assert set(result.values()) == {None}
    summary = summarize(timings(), 1000)
    assert summary.pop("num_steps_summarized") == 0
    assert set(summary.values()) == {None}


def test_summary_by_hand() -> None:
    summary = summarize(timings(), WARMUP)
    expected = {
        "num_steps_summarized": 2,
        # rank 0 took 90 + 98, rank 1 100 + 96 ms; 100 tokens in each step
        "tokens_per_s": 200 / 0.196,
        # a step lasts as long as its slowest rank: 100 and 98 ms
        "step_mean_ms": 99.0,
        "step_p50_ms": 99.0,
        "step_p95_ms": 98 + 0.95 * 2,
        # 8, 8, 10, 14 over ranks and steps: the median lies between 8 and 10, the
        # 95 % quantile 0.95 x 3 = 2.85 places up, at 10 + 0.85 x 4
        "allreduce_p50_ms": 9.0,
        "allreduce_p95_ms": 13.4,
        # hidden 6 + 6 + 4 + 6 of 8 + 8 + 10 + 14
        "overlap": 22 / 40,
        # the ranks are 4 and 2 ms apart
        "skew_p50_ms": 3.0,
        # 70 and 80 of step 11, and 75 twice of the hashed step 20
        "backward_bracketed_p50_ms": 75.0,
    }
    assert summary == pytest.approx(expected)


def test_typical_step_and_skew_are_medians() -> None:
    """One step in three was disturbed, which a mean would show."""
    rows = []
    for step, ms, apart in ((10, 98, 2), (12, 100, 4), (14, 130, 30)):
        rows.append(plain(step, 0, ms))
        rows.append(plain(step, 1, 90, last_bucket_at_ns=10**9 + apart * MS))
    summary = summarize(pd.DataFrame([*rows, bracketed(11, 0)]), WARMUP)
    assert (summary["step_p50_ms"], summary["skew_p50_ms"]) == (100, 4)
    # 98 + 100 + 130 over 3
    assert summary["step_mean_ms"] == pytest.approx(328 / 3)


def test_ranks_of_several_hosts_have_no_skew() -> None:
    """The second host was booted a month before the first."""
    table = timings()
    assert summarize(table[table["rank"] == 0], WARMUP)["skew_p50_ms"] is None
    on_second = table["rank"] == 1
    table.loc[on_second, "last_bucket_at_ns"] += 30 * 86_400 * 1000 * MS
    found = summarize(table, WARMUP, num_hosts=2)
    assert found == summarize(timings(), WARMUP) | {"skew_p50_ms": None}


def test_intervals_are_around_the_means_of_the_account() -> None:
    table = account_intervals(timings(), WARMUP).set_index("part")
    assert list(table.index) == list(PARTS)
    means = account(timings(), WARMUP)
    assert table["mean_ms"].to_dict() == pytest.approx({n: means[n] for n in PARTS})
    assert (table["low_ms"] <= table["mean_ms"]).all()
    assert (table["mean_ms"] <= table["high_ms"]).all()
    # two samples, 0 and 1: a quarter of the draws are both 0, a quarter both 1
    assert tuple(table.loc["data_ms", ["low_ms", "high_ms"]]) == (0, 1)
    # a part that never varies has no width
    assert tuple(table.loc["optimizer_ms"]) == (4, 4, 4)


def test_intervals_are_the_same_every_time() -> None:
    rows = [instrumented(10 + i, 0, data_ms=i**0.5) for i in range(50)]
    table = pd.DataFrame([*clean_rows(), *rows])
    first, second = (account_intervals(table, WARMUP) for _ in range(2))
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_interval_narrows_as_the_square_root_of_the_samples() -> None:
    # half zeros, half ones: the mean of n has a deviation of 0.5 / sqrt(n), and 5 to
    # 95 % of a normal are 2 x 1.645 deviations: 1.645 / sqrt(400) = 0.082
    rows = [instrumented(10 + i, 0, data_ms=i % 2) for i in range(400)]
    table = account_intervals(pd.DataFrame(rows), WARMUP).set_index("part")
    low, high = table.loc["data_ms", ["low_ms", "high_ms"]]
    assert high - low == pytest.approx(0.082, rel=0.1)
    assert BOOTSTRAP_DRAWS >= 1000
