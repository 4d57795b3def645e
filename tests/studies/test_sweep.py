"""Sweep of all-reduces: statistics by hand, injected faults, a small real sweep."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import sweep as sweeping
import sweep_rank
import torch.distributed as dist
from sweep import statistics, sweep
from sweep_rank import (
    MIN_TRIALS,
    NUM_VISITS,
    NUM_WARMUP,
    AllReduce,
    Backend,
    Trial,
    visits,
)
from torch import Tensor

from minitrain.core.errors import EvidenceError

SIZES = [4, 4096]


# 2 (n - 1) / n: 1 for two ranks, 6 / 4 for four
@pytest.mark.parametrize(("world_size", "factor"), [(2, 1.0), (4, 1.5)])
def test_statistics_by_hand(world_size: int, factor: float) -> None:
    # 1, 2, 3, 4, 5 ms: the 5 % quantile lies 0.05 x 4 = 0.2 of the way to the second
    seconds = [0.003, 0.001, 0.005, 0.002, 0.004]
    row = statistics("gloo", world_size, 6_000_000, seconds)
    # 6 MB in 3 ms are 2 GB/s
    assert row == {
        "backend": "gloo",
        "world_size": world_size,
        "num_bytes": 6_000_000,
        "num_trials": 5,
        "p5_us": pytest.approx(1200),
        "p50_us": pytest.approx(3000),
        "p95_us": pytest.approx(4800),
        "algbw_gb_per_s": pytest.approx(2.0),
        "busbw_gb_per_s": pytest.approx(2.0 * factor),
    }
    # nothing is sent
    for backend, ranks in (("gloo", 1), ("copy", 2)):
        assert statistics(backend, ranks, 4_000, [1e-6])["busbw_gb_per_s"] is None


def test_sizes_come_again_in_another_order() -> None:
    """A slow start of the sweep must not look like an effect of small sizes."""
    order = visits(14)
    passes = [order[i : i + 14] for i in range(0, len(order), 14)]
    assert all(sorted(each) == list(range(14)) for each in passes)
    assert len({tuple(each) for each in [range(14), *passes]}) == 1 + NUM_VISITS
    seen: list[int] = []

    def watched(_: ExitStack) -> AllReduce:
        return lambda tensor: seen.append(tensor.nbytes)

    sizes = [4 * 4**i for i in range(5)]
    found = sweep_rank.be_a_rank({"watched": Backend(watched)}, sizes, 0.0)
    each = NUM_WARMUP + MIN_TRIALS // NUM_VISITS
    assert seen[::each] == [sizes[index] for index in visits(5)]
    for trials in found:
        timed = [trial.timed for trial in trials["watched"]]
        assert timed == NUM_VISITS * (
            [False] * NUM_WARMUP + [True] * (each - NUM_WARMUP)
        )


def test_statistics_are_of_timed_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks and one size: 2 and 3 us of computation, rank 1 starts 20 us late."""

    def of_rank(start: float, took: float) -> list[dict[str, list[Trial]]]:
        warm_up = Trial(0.0, 1.0, True, False)
        trial = Trial(start, start + took, True, True)
        return [{name: [warm_up, *[trial] * 3] for name in ("gloo", "copy")}]

    ranks = [of_rank(0.0, 2e-6), of_rank(20e-6, 3e-6)]
    monkeypatch.setattr(sweeping, "launch", lambda *_, **__: ranks)
    gloo, copy = sweep(2, [4], 1.0, {"gloo": Backend(honest)})
    assert (gloo["num_trials"], copy["num_trials"]) == (3, 3)
    # an all-reduce lasts from the first start to the last end
    assert gloo["p95_us"] == pytest.approx(23)
    assert copy["p95_us"] == pytest.approx(3)


def honest(_: ExitStack) -> AllReduce:
    return dist.all_reduce


def lossy(_: ExitStack) -> AllReduce:
    """Drop the last element of large tensors."""

    def all_reduce(tensor: Tensor) -> None:
        dist.all_reduce(tensor if len(tensor) == 1 else tensor[:-1])

    return all_reduce


def stale(_: ExitStack) -> AllReduce:
    """Return the result of the second trial from then on, on rank 1."""
    seen: dict[int, list[Tensor]] = {}

    def all_reduce(tensor: Tensor) -> None:
        dist.all_reduce(tensor)
        before = seen.setdefault(len(tensor), [])
        if dist.get_rank() == 1 and len(before) > 1 and len(tensor) > 1:
            tensor.copy_(before[1])
        before.append(tensor.clone())

    return all_reduce


@pytest.mark.slow
@pytest.mark.parametrize("start", [lossy, stale], ids=["lossy", "stale"])
def test_wrong_result_is_named(start: Callable[[ExitStack], AllReduce]) -> None:
    subjects = {"honest": Backend(honest), "wrong": Backend(start)}
    line = f"^wrong, 4096 bytes, 2 processes: rank {int(start is stale)} got"
    with pytest.raises(EvidenceError, match=line):
        sweep(2, SIZES, 0.0, subjects)
