"""Delays planted in every part of one rank's step: the account books each there."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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


def planted(part: str) -> str:
    """The column of a row that holds the delay as it was, which is a little longer."""
    return f"planted_{part}"


@dataclass(frozen=True)
class Delays:
    """Delay every part of the steps of ``rank`` (to be injected)."""

    rank: int

    def __call__(self, worker: Worker) -> None:
        """Wrap what each part calls."""
        if worker.rank != self.rank:
            return

        observer: Any = worker.observer

        def late(part: str) -> None:
            start = time.perf_counter()
            time.sleep(DELAYS[part] / 1e3)
            observer.clock.row[planted(part)] = 1e3 * (time.perf_counter() - start)

        def delayed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*given: Any) -> Any:
                late(part)
                return function(*given)

            return wrapper

        batches: Any = worker.batches
        batches.micro_batches = delayed("data_ms", batches.micro_batches)
        batches.loss = delayed("forward_ms", batches.loss)
        # of the first parameter, whose gradient is among the last
        first = next(worker.model.parameters())
        first.register_hook(lambda _: late("backward_compute_ms"))
        sync: Any = worker.sync
        # the model has one bucket
        sync.sum_over_ranks = delayed("comm_exposed_ms", sync.sum_over_ranks)
        step: Any = worker
        step.step = delayed("optimizer_ms", worker.step)


@pytest.mark.parametrize("rank", [0, 1])
def test_planted_delays_are_booked_to_their_part_and_rank(rank: int) -> None:
    run = replace(make_run(steps=STEPS), hash_every=STEPS)
    rows = pd.DataFrame(timed_run(run, 2, Delays(rank), timeout_s=120))
    table = account(rows, WARMUP)
    late, other = (means(table, f"rank {r}") for r in (rank, 1 - rank))
    plain = pd.DataFrame(plain_steps(rows, WARMUP))
    mine = plain[plain["rank"] == rank]
    took = {part: float(mine[planted(part)].mean()) for part in DELAYS}
    assert late["step_ms"] == pytest.approx(mine["step_ms"].mean(), rel=1e-9)
    # the other rank waits for all of it but the communication, which both are in
    communication = took.pop("comm_exposed_ms")
    for part, ms in took.items():
        assert late[part] - other[part] == pytest.approx(ms, rel=0.1, abs=25), part
    assert other["wait_ms"] == pytest.approx(sum(took.values()), rel=0.15)
    assert late["wait_ms"] < 0.1 * sum(took.values())
    for found in (late, other):
        assert found["comm_exposed_ms"] == pytest.approx(communication, rel=0.3)
