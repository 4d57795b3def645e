import math
from itertools import product
from typing import Any

import pandas as pd
import pytest

from minitrain.analysis import account as analysis
from minitrain.analysis.account import (
    PARTS,
    account,
    ddp_says,
    means,
    summarize,
    summarized,
)
from minitrain.analysis.stragglers import find_stragglers

WARMUP = 10
# a step that was hashed, and one right after a checkpoint
DISTURBED = ("recorded", "after_interruption")
MS = 1_000_000


def row(step: int, rank: int, kind: str, **values: Any) -> dict[str, Any]:
    """One undisturbed step of one rank, with 50 tokens."""
    fixed = {"step": step, "rank": rank, "kind": kind, "tokens": 50}
    return fixed | dict.fromkeys(DISTURBED, False) | values


def plain(step: int, rank: int, step_ms: float = 95, **values: Any) -> dict[str, Any]:
    """A plain step whose last bucket is handed over at 1 s on both ranks."""
    parts = {
        "data_ms": 1.0,
        "forward_ms": 20.0,
        "backward_ms": 70.0,
        "to_last_bucket_ms": 60.0,
        "comm_exposed_ms": 10.0,
        "comm_total_ms": 8.0,
        "comm_hidden_ms": 6.0,
        "last_bucket_at_ns": 10**9,
        "other_ms": 0.0,
        "optimizer_ms": 4.0,
    }
    return row(step, rank, "plain", step_ms=step_ms, **(parts | values))


def bracketed(step: int, rank: int, **values: Any) -> dict[str, Any]:
    parts = {"backward_ms": 75.0, "backward_compute_ms": 55.0, "step_ms": 100.0}
    return row(step, rank, "bracketed", **(parts | values))


def clean_rows() -> list[dict[str, Any]]:
    """Two ranks, steps 10 to 13: plain, bracketed, one after it, plain.

    Plain steps take rank 0 91 and 98 ms, rank 1 100 and 96 ms.
    """
    late = {"last_bucket_at_ns": 10**9 + 4 * MS, "to_last_bucket_ms": 64.0}
    early = {"last_bucket_at_ns": 10**9 - 2 * MS, "to_last_bucket_ms": 58.0}
    return [
        plain(10, 0, 91, tokens=40, forward_ms=16),
        plain(10, 1, 100, tokens=60, comm_exposed_ms=6, other_ms=5, **late),
        bracketed(11, 0, backward_compute_ms=50, backward_ms=70),
        bracketed(11, 1, backward_compute_ms=60, backward_ms=80),
        *(plain(12, rank, 9e9, data_ms=9e9) for rank in (0, 1)),
        plain(13, 0, 98, comm_total_ms=10, comm_hidden_ms=4, optimizer_ms=7),
        plain(13, 1, 96, comm_total_ms=14, comm_exposed_ms=12, data_ms=2, **early),
    ]


def misleading_rows() -> list[dict[str, Any]]:
    """Rows to ignore: warm-up, hashed steps, and a step after a checkpoint."""
    absurd = dict.fromkeys([*PARTS, "to_last_bucket_ms", "step_ms"], 9e9)
    absurd |= {"comm_total_ms": 9e9, "comm_hidden_ms": 9e9, "backward_ms": 75.0}
    rows = []
    for rank in (0, 1):
        steps = {0: "recorded", 3: "", 9: "", 20: DISTURBED[0], 30: DISTURBED[1]}
        for step, why in steps.items():
            for kind in ("plain", "bracketed"):
                values = absurd | {name: name == why for name in DISTURBED}
                values |= {"tokens": 10**9, "last_bucket_at_ns": 9 * 10**9 * rank}
                rows.append(row(step, rank, kind, **values))
    # step 10 follows no bracketed step
    return [r for r in rows if (r["step"], r["kind"]) != (9, "bracketed")]


def timings(*more: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([*misleading_rows(), *clean_rows(), *more])


def test_warmup_and_disturbed_steps_are_left_out() -> None:
    assert set(summarized(timings(), WARMUP)["step"]) == {10, 11, 12, 13}


BY_HAND = {
    "data_ms": (1 + 1 + 1 + 2) / 4,
    "forward_ms": (16 + 20 + 20 + 20) / 4,
    # 50 and 60 ms, from the bracketed step
    "backward_compute_ms": 55,
    # 60, 64, 60 and 58 ms to the last bucket, less 55
    "interference_ms": 60.5 - 55,
    # rank 0 waits 4 ms in step 10, rank 1 2 ms in step 13
    "wait_ms": (4 + 0 + 0 + 2) / 4,
    # of 10, 6, 10 and 12 ms the rest
    "comm_exposed_ms": (6 + 6 + 10 + 10) / 4,
    "other_ms": 5 / 4,
    "optimizer_ms": (4 + 4 + 7 + 4) / 4,
    # 91, 100, 98, 96
    "step_ms": 96.25,
}


def test_account_by_hand() -> None:
    found = means(account(timings().assign(optimizer_comm_ms=3.0), WARMUP))
    assert found.pop("optimizer_comm_ms") == 3
    assert found["step_ms"] == pytest.approx(99.25)
    found = means(account(timings(), WARMUP))
    assert [*found] == [*BY_HAND]
    assert found == pytest.approx(BY_HAND)


def test_parts_of_each_rank_add_up_to_its_step() -> None:
    table = account(timings(), WARMUP)
    assert [*dict.fromkeys(row["rank"] for row in table)] == ["all", "rank 0", "rank 1"]
    first, second = means(table, "rank 0"), means(table, "rank 1")
    assert (first["step_ms"], second["step_ms"]) == pytest.approx((94.5, 98))
    assert (first["wait_ms"], second["wait_ms"]) == (2, 1)
    assert first["interference_ms"] == pytest.approx(60 - 50)


def test_wait_is_no_longer_than_what_is_exposed() -> None:
    """A strategy that returns buckets before all of them have arrived."""
    rows = timings()
    rows.loc[(rows["step"] == 10) & (rows["rank"] == 0), "comm_exposed_ms"] = 1
    found = means(account(rows, WARMUP))
    assert (found["wait_ms"], found["comm_exposed_ms"]) == (3 / 4, 26 / 4)


def test_hosts_have_clocks_of_their_own() -> None:
    found = means(account(timings(), WARMUP, one_clock=False))
    assert "wait_ms" not in found
    assert found["comm_exposed_ms"] == (10 + 6 + 10 + 12) / 4
    assert found["step_ms"] == pytest.approx(96.25)
    rows = timings()
    assert "wait_ms" not in means(account(rows[rows["rank"] == 0], WARMUP))


def test_without_calibration_backward_is_one_part_until_the_last_gradient() -> None:
    """A run too short for a bracketed step."""
    rows = timings()
    rows.loc[rows["kind"] == "bracketed", "recorded"] = True
    found = means(account(rows, WARMUP))
    split = {"backward_compute_ms", "interference_ms"}
    assert found.keys() == (BY_HAND.keys() - split) | {"backward_ms"}
    assert found["backward_ms"] == 60.5
    assert found["step_ms"] == pytest.approx(96.25)


def test_without_the_last_gradient_backward_holds_communication() -> None:
    """The timings of fsdp, and of a GPU."""
    rows = timings()
    columns = [name for name in rows if "comm" in name or "bucket" in name]
    without = rows.drop(columns=columns)
    summary = summarize(without, WARMUP)
    names = ["allreduce_p50_ms", "allreduce_p95_ms", "overlap", "skew_p50_ms"]
    assert [summary[name] for name in names] == [None] * 4
    found = means(account(without, WARMUP))
    names = ["data_ms", "forward_ms", "backward_ms", "other_ms", "optimizer_ms"]
    assert [*found] == [*names, "step_ms"]
    assert found["backward_ms"] == 70


def test_ddps_own_log_beside_the_clock() -> None:
    logged = [plain(14, 0, ddp_forward_ms=18), plain(16, 1, ddp_forward_ms=20)]
    # in a bracketed step a barrier lies between forward and backward
    others = [bracketed(18, 0, ddp_forward_ms=9e9, forward_ms=9e9)]
    says = ddp_says(timings(*logged, *others), WARMUP)
    forward = {"ddp": 19, "ours": 20, "difference_pct": -5}
    assert says.pop("forward_ms") == pytest.approx(forward)
    missing = {"ddp": None, "ours": None, "difference_pct": None}
    assert list(says) == ["backward_ms", "backward_compute_ms", "comm_ms"]
    assert all(said == missing for said in says.values())


def test_nothing_left_to_summarize() -> None:
    for table in (timings(), pd.DataFrame(columns=timings().columns)):
        assert account(table, 1000) == []
        assert means(account(table, 1000)) == {"step_ms": None}
        summary = summarize(table, 1000)
        assert summary.pop("num_steps_summarized") == 0
        assert set(summary.values()) == {None}


def test_summary_by_hand() -> None:
    summary = summarize(timings(), WARMUP)
    expected = {
        "num_steps_summarized": 2,
        # rank 0 took 91 + 98, rank 1 100 + 96 ms; 100 tokens in each step
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
    """One of three steps is disturbed, which would move a mean; one has no time."""
    rows = [plain(16, 0, math.nan, last_bucket_at_ns=math.nan)]
    for step, ms, apart in ((10, 98, 2), (13, 100, 4), (14, 130, 30)):
        rows.append(plain(step, 0, ms))
        rows.append(plain(step, 1, 90, last_bucket_at_ns=10**9 + apart * MS))
    table = pd.DataFrame([*rows, bracketed(11, 0)])
    assert find_stragglers(table, WARMUP).step_ms == 100
    summary = summarize(table, WARMUP)
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
    table = pd.DataFrame(account(timings(), WARMUP)).set_index("part")
    table = table[table["rank"] == "rank 0"]
    # two samples, 16 and 20: a quarter of the draws are both 16, a quarter both 20
    assert tuple(table.loc["forward_ms", ["low_ms", "high_ms"]]) == (16, 20)
    # a constant component has no width
    assert tuple(table.loc["data_ms", ["low_ms", "mean_ms", "high_ms"]]) == (1, 1, 1)
    # the draws are the same every time
    assert account(timings(), WARMUP) == account(timings(), WARMUP)


def width(rows: pd.DataFrame, part: str) -> float:
    table = pd.DataFrame(account(rows, WARMUP)).set_index(["rank", "part"])
    low, high = table.loc[("all", part), ["low_ms", "high_ms"]]
    return float(high - low)


def test_interval_of_a_difference_holds_the_noise_of_both() -> None:
    """Interference: 400 steps and 400 calibrations, half of each 1 ms longer. Four
    ranks that are slow at the same steps are no more certain than one.
    """
    table = []
    for rank, i in product(range(4), range(400)):
        table.append(plain(20 + i, rank, to_last_bucket_ms=60 + i % 2))
        table.append(bracketed(500 + i, rank, backward_compute_ms=55 + i % 2))
    both = pd.DataFrame(table)
    # the mean of n halves and ones has a deviation of 0.5 / sqrt(n), and 5 to 95 % of
    # a normal are 2 x 1.645 deviations: 1.645 / sqrt(400) = 0.082
    assert width(both, "interference_ms") == pytest.approx(2**0.5 * 0.082, rel=0.1)


def test_interval_of_a_long_run_is_of_blocks_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100 blocks of 4 steps: 1.645 / sqrt(100). There are fewer calibrations."""
    monkeypatch.setattr(analysis, "MOST_BLOCKS", 100)
    rows = [plain(20 + i, 0, data_ms=i // 4 % 2) for i in range(400)]
    alone = [bracketed(500 + i, 0, backward_compute_ms=55) for i in range(90)]
    table = pd.DataFrame([*rows, *alone])
    assert width(table, "data_ms") == pytest.approx(0.165, rel=0.15)
    found = pd.DataFrame(account(table, WARMUP)).set_index(["rank", "part"])
    assert found.loc[("all", "data_ms"), "mean_ms"] == 0.5
    assert ("all", "interference_ms") in found.index
