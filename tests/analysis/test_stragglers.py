import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from minitrain.analysis.stragglers import (
    FALSE_ALARMS,
    FLOOR,
    find_stragglers,
    own_work,
)

pytestmark = pytest.mark.slow

WARMUP = 12
# own work of a normal rank, and the minimum of communication, in ms
OWN, COMM = 80.0, 20.0
UNTOLD = "no step separates a rank's own work from communication"


def row(step: int, rank: int, own_ms: float, slowest_ms: float) -> dict[str, Any]:
    """A step with ``own_ms`` of work on ``rank``, ``slowest_ms`` on the slowest."""
    waited = slowest_ms - own_ms
    return {
        "step": step,
        "rank": rank,
        "kind": "plain",
        "recorded": False,
        "after_interruption": False,
        "data_ms": 1.0,
        "forward_ms": 25.0,
        "other_ms": 0.0,
        "optimizer_ms": 4.0,
        "to_last_bucket_ms": own_ms - 30,
        "comm_exposed_ms": COMM + waited,
        "step_ms": own_ms + COMM + waited,
    }


def run(own_ms: npt.NDArray[np.float64], first: int = WARMUP) -> pd.DataFrame:
    """A run of plain steps from ``first`` on, with ``own_ms`` of work per rank."""
    return pd.DataFrame(
        row(first + step, rank, own, float(of_step.max()))
        for step, of_step in enumerate(own_ms)
        for rank, own in enumerate(of_step)
    )


def calibrated(timings: pd.DataFrame) -> pd.DataFrame:
    """Add as many bracketed steps, whose calibration pass shows which rank is late."""
    alone = timings.assign(
        step=timings["step"] + 1000,
        kind="bracketed",
        backward_compute_ms=timings["to_last_bucket_ms"],
        comm_exposed_ms=0.0,
        to_last_bucket_ms=9e9,
        step_ms=9e9,
    )
    return pd.concat([timings, alone], ignore_index=True)


def noisy(excess: Sequence[float], seed: int) -> pd.DataFrame:
    """Sixty steps of ranks slower by ``excess``, with noise in every one."""
    noise = np.random.default_rng(seed).normal(0, 6, (60, len(excess)))
    return run(OWN + np.array(excess) + noise)


def named(timings: pd.DataFrame) -> list[int]:
    found = find_stragglers(timings, WARMUP)
    assert found.undecided is None
    return [lag.rank for lag in found.slow]


def test_slow_rank_by_hand() -> None:
    """Rank 1 has 8 ms more work than rank 0 in each of 20 steps."""
    found = find_stragglers(run(np.tile([OWN, OWN + 8], (20, 1))), WARMUP)
    # 88 of the slower rank, and communication; without noise any excess above the floor
    # is detected
    assert [lag.rank for lag in found.lags] == [1, 0]
    assert found.lags[1].excess_ms == pytest.approx(-8)
    assert json.loads(json.dumps(found.numbers())) == {
        "slow": [{"rank": 1, "excess_ms": 8, "low_ms": 8, "high_ms": 8}],
        "others_wait_ms": pytest.approx(8),
        "visible_ms": pytest.approx(FLOOR * 108),
        "step_ms": 108,
        "num_steps": 20,
        "undecided": None,
    }


def test_interval_and_what_is_visible_by_hand() -> None:
    """Eight steps, in which rank 1 exceeds rank 0 by 1, 2, ... 8 ms, in some order."""
    later = np.array([5, 1, 8, 3, 2, 7, 6, 4], float)
    own = OWN + np.stack([np.zeros(8), later], axis=1)
    found = find_stragglers(run(own), WARMUP)
    assert found.step_ms == pytest.approx(OWN + COMM + 4.5)
    first = found.lags[0]
    assert (first.rank, first.excess_ms) == (1, pytest.approx(4.5))
    # a coin shows 7 or 8 of 8 heads in 9 of 256 cases, 6 or more in 37: so the interval
    # goes from the seventh largest to the seventh smallest
    assert (first.low_ms, first.high_ms) == (pytest.approx(2), pytest.approx(7))
    # for a call of one of two ranks 1 of 256 is seldom enough, and 9 are not: all eight
    # must exceed the floor of 5.225, which they would if each were larger by 4.225
    assert found.slow == []
    assert first.visible_ms == pytest.approx(4.5 + 4.225)
    # the floor grows with the step, by 5 % of what is added
    for more, expected in ((4.225 / 0.95 - 0.01, []), (4.225 / 0.95 + 0.01, [1])):
        assert named(run(own + np.array([0, more]))) == expected


def test_own_work_by_hand() -> None:
    """1 + 25 + 4 ms, and backward: until the last bucket, or without communication."""
    timings = calibrated(run(np.array([[OWN, OWN + 1]])).assign(other_ms=2.0))
    for within in (False, True):
        own = own_work(timings, WARMUP, waits_within=within)
        assert own.tolist() == [[82, 83]]
    # a step that one rank lacks is left out
    timings = run(np.tile([OWN, OWN + 8], (20, 1)))
    timings.loc[3, "after_interruption"] = True
    assert len(own_work(timings, WARMUP)) == 19


@pytest.mark.parametrize(
    # of hashed steps the next one as well
    ("why", "flagged"),
    [("recorded", 2), ("after_interruption", 3)],
)
def test_disturbed_steps_say_nothing(why: str, flagged: int) -> None:
    own = np.full((48, 2), OWN)
    timings = run(own + np.where(np.arange(48)[:, None] % 4 < 3, [0, 50], 0))
    assert named(timings) == [1]
    # a quarter is left
    assert named(timings.assign(**{why: timings["step"] % 4 < flagged})) == []


@pytest.mark.parametrize("slow", range(4))
def test_slow_rank_is_found_in_noise_at_any_place(slow: int) -> None:
    excess = [0.0] * 4
    # of a step of some 115 ms the floor is 6
    excess[slow] = 15.0
    found = find_stragglers(noisy(excess, slow), WARMUP)
    (lag,) = found.slow
    assert lag.rank == slow
    # the standard error of a median of 60 differences of two is 1.25 x 8.5 / 7.7
    assert lag.excess_ms == pytest.approx(15, abs=5)
    assert lag.low_ms < lag.excess_ms < lag.high_ms
    assert found.others_wait_ms == pytest.approx(15, abs=10)


@pytest.mark.parametrize("within", [False, True])
def test_no_rank_is_named_where_none_is_slow(within: bool) -> None:
    for seed in range(20):
        timings = calibrated(noisy([0.0] * 4, seed))
        found = find_stragglers(timings, WARMUP, waits_within=within)
        assert (found.undecided, found.slow, found.others_wait_ms) == (None, [], None)


def test_rank_as_slow_as_the_floor_is_seldom_named() -> None:
    """The worst case of the promise: false alarms in at most 1 % of the runs."""
    # a step of 100 ms, so that the floor is 5
    timings = run(np.full((42, 2), OWN)).assign(step_ms=100.0)
    alarms = 0
    for seed in range(400):
        noise = np.random.default_rng(seed).standard_t(3, (42, 2)) * 6
        own = OWN + noise + [0.0, 100 * FLOOR]
        backward = (own - 30).ravel()
        alarms += named(timings.assign(to_last_bucket_ms=backward)) != []
    # of one rank half the rate, 0.5 %, is 2 of 400: above 7 in one case of a thousand
    assert FALSE_ALARMS == 0.01
    assert alarms <= 7


def test_what_is_slow_for_all_or_in_turn_or_below_the_floor_names_none() -> None:
    for_all, in_turn = np.full((40, 2), OWN), np.full((40, 2), OWN)
    for_all[::3] *= 3
    in_turn[::2, 0] += 30
    in_turn[1::2, 1] += 30
    # 4 of 104 ms
    below = np.tile([OWN + 4, OWN], (200, 1))
    for own in (for_all, in_turn, below):
        assert named(run(own)) == []


def test_two_slow_ranks_of_four() -> None:
    """All other ranks wait for the slowest one, including another slow rank."""
    own = np.tile([OWN, OWN + 30, OWN, OWN + 10], (20, 1))
    found = find_stragglers(run(own), WARMUP)
    # of 0, 0 and 10 the median is 0, and of 0, 0 and 30 too
    assert [(lag.rank, lag.excess_ms) for lag in found.slow] == [
        (1, pytest.approx(30)),
        (3, pytest.approx(10)),
    ]
    assert found.others_wait_ms == pytest.approx(30)


def test_too_few_ranks_or_steps_decide_nothing() -> None:
    """Too few steps, even if a rank is slower in all of them."""
    alone = find_stragglers(run(np.full((40, 1), OWN)), WARMUP)
    assert alone.undecided == "with one rank, no other rank waits"
    assert alone.numbers()["visible_ms"] is None
    own = np.tile([OWN, OWN + 50], (8, 1))
    found = find_stragglers(run(own[:7]), WARMUP)
    # 1 of 128 is more than half of 1 %
    assert found.undecided == "7 steps are too few, at least 8 are needed"
    assert (found.slow, found.visible_ms) == ([], None)
    assert named(run(own)) == [1]
    # of four ranks each may be called in a quarter of 1 %, and 2 ** -9 is less
    four = np.tile([OWN, OWN, OWN, OWN + 50], (9, 1))
    found = find_stragglers(run(four[:8]), WARMUP)
    assert found.undecided == "8 steps are too few, at least 9 are needed"
    assert named(run(four)) == [3]


def test_without_times_of_buckets_bracketed_steps_decide() -> None:
    """On a GPU, the waiting time of the others is unknown."""
    timings = calibrated(run(np.tile([OWN, OWN + 50], (10, 1))))
    buckets = ["to_last_bucket_ms", "comm_exposed_ms"]
    found = find_stragglers(timings.drop(columns=buckets), WARMUP)
    assert [lag.rank for lag in found.slow] == [1]
    assert found.num_steps == 10
    assert found.others_wait_ms is None


def test_wait_within_backward_hides_no_slow_rank() -> None:
    """A rank that is 30 % slower: the bracketed steps show it, the others do not."""
    noise = np.random.default_rng(1).normal(0, 6, (15, 2))
    timings = calibrated(run(OWN + noise + [0, 0.3 * OWN]))
    # fast ranks wait at a synchronization in their backward pass
    slowest = timings.groupby("step")["to_last_bucket_ms"].transform("max")
    exposed = timings["comm_exposed_ms"] - (slowest - timings["to_last_bucket_ms"])
    timings = timings.assign(to_last_bucket_ms=slowest, comm_exposed_ms=exposed)
    assert find_stragglers(timings, WARMUP).slow == []
    found = find_stragglers(timings, WARMUP, waits_within=True)
    assert [lag.rank for lag in found.slow] == [1]
    assert found.num_steps == 15
    assert found.slow[0].low_ms < 0.3 * OWN < found.slow[0].high_ms
    # some of their waiting is not timed
    assert found.others_wait_ms is None


def test_steps_that_do_not_separate_own_work_decide_nothing() -> None:
    found = find_stragglers(run(np.full((20, 2), OWN)), 1000)
    assert (found.undecided, found.step_ms) == (UNTOLD, None)
    # under fsdp: no bucket, no pass without communication, all steps plain
    timings = run(np.tile([OWN, OWN + 50], (40, 1)))
    without = timings.drop(columns=["to_last_bucket_ms", "comm_exposed_ms"])
    assert find_stragglers(without, WARMUP).undecided == UNTOLD
    assert find_stragglers(timings, WARMUP, waits_within=True).undecided == UNTOLD


def test_wait_in_the_optimizer_counts() -> None:
    """Under zero1, ranks also synchronize in the optimizer."""
    timings = run(np.tile([OWN, OWN + 50], (40, 1)))
    comm = np.where(timings["rank"] == 0, 9.0, 2.0)
    found = find_stragglers(timings.assign(optimizer_comm_ms=comm), WARMUP)
    assert found.others_wait_ms == pytest.approx(50 + 9 - 2)
