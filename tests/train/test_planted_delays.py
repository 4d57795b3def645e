"""Delays planted in every part of one rank's step: the account books each there."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import pytest
from slowed import timed_run
from subjects import make_run

from minitrain.analysis.account import account, means, plain_steps
from minitrain.train.worker import Worker

pytestmark = pytest.mark.slow

STEPS, WARMUP = 20, 4
# milliseconds, each part another; long beside what a busy machine adds
DELAYS = {
    "data_ms": 60,
    "forward_ms": 70,
    "backward_compute_ms": 80,
    "comm_exposed_ms": 90,
    "optimizer_ms": 100,
}


def delay_every_part(worker: Worker, rank: int) -> None:
    """Make ``rank`` late in what each part of a step calls (to be injected)."""
    if worker.rank != rank:
        return
    observer: Any = worker.observer

    def late(part: str) -> None:
        start = time.perf_counter()
        time.sleep(DELAYS[part] / 1e3)
        # which is a little longer
        observer.clock.row[f"planted_{part}"] = 1e3 * (time.perf_counter() - start)

    def delay(owner: Any, name: str, part: str) -> None:
        right = getattr(owner, name)

        def wrapper(*given: Any) -> Any:
            late(part)
            return right(*given)

        setattr(owner, name, wrapper)

    delay(worker.batches, "micro_batches", "data_ms")
    delay(worker.batches, "loss", "forward_ms")
    # of the first parameter, whose gradient is among the last
    first = next(worker.model.parameters())
    first.register_hook(lambda _: late("backward_compute_ms"))
    # the model has one bucket
    delay(worker.sync, "sum_over_ranks", "comm_exposed_ms")
    delay(worker, "step", "optimizer_ms")


@pytest.mark.parametrize("rank", [0, 1])
def test_planted_delays_are_booked_to_their_part_and_rank(rank: int) -> None:
    run = replace(make_run(steps=STEPS), hash_every=STEPS)
    inject = partial(delay_every_part, rank=rank)
    rows = pd.DataFrame(timed_run(run, 2, inject, timeout_s=120))
    table = account(rows, WARMUP)
    late, other = (means(table, f"rank {r}") for r in (rank, 1 - rank))
    plain = pd.DataFrame(plain_steps(rows, WARMUP))
    mine = plain[plain["rank"] == rank]
    took = {part: float(mine[f"planted_{part}"].mean()) for part in DELAYS}
    assert late["step_ms"] == pytest.approx(mine["step_ms"].mean(), rel=1e-9)
    # the other rank waits for all of it but the communication, which both are in
    communication = took.pop("comm_exposed_ms")
    for part, ms in took.items():
        assert late[part] - other[part] == pytest.approx(ms, rel=0.1, abs=25), part
    assert other["wait_ms"] == pytest.approx(sum(took.values()), rel=0.15)
    assert late["wait_ms"] < 0.1 * sum(took.values())
    for found in (late, other):
        assert found["comm_exposed_ms"] == pytest.approx(communication, rel=0.3)
