"""Stamps of a step, with a clock that the test sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn

from minitrain.data.batches import MicroBatch
from minitrain.sync.strategy import BucketEvent, Strategy, SyncTrace
from minitrain.train import clock
from minitrain.train.clock import StepClock, bucket_times, kind_of_step
from minitrain.train.config import RunConfig
from minitrain.train.observer import StepObserver
from minitrain.train.worker import Worker

MS = 1_000_000


class Watch:
    """A clock that stands still until ``wait``; counts the synchronizations."""

    def __init__(self) -> None:
        self.now_ns = 5 * MS
        self.synchronized = 0

    def wait(self, ms: float) -> None:
        self.now_ns += int(ms * MS)

    def synchronize(self) -> None:
        """What a GPU still has to do takes two milliseconds."""
        self.synchronized += 1
        self.wait(2)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """The only clock that minitrain.train.clock sees."""
    watch = Watch()
    time = SimpleNamespace(perf_counter_ns=lambda: watch.now_ns)
    monkeypatch.setattr(clock, "time", time)
    return watch


def test_last_of_five_steps_is_bracketed() -> None:
    kinds = [kind_of_step(step) for step in range(10)]
    assert kinds == [*["plain"] * 4, "bracketed"] * 2


def test_parts_add_up_to_the_step(watch: Watch) -> None:
    stamps = StepClock(lambda: None, watches=True)
    stamps.begin(3)
    parts = [("data", 1.5), ("forward", 1.0), ("forward", 2.0), ("optimizer", 0.25)]
    for part, ms in parts:
        watch.wait(100)
        # what came between belongs to no part
        stamps.restart()
        watch.wait(ms)
        stamps.mark(part)
    named = {"data_ms": 1.5, "forward_ms": 3.0, "optimizer_ms": 0.25}
    assert stamps.finish() == {"step": 3, "kind": "plain", **named, "step_ms": 4.75}
    # the first part of the next begins where this step ended
    watch.wait(7)
    stamps.begin(6)
    stamps.mark("data")
    assert stamps.finish()["step_ms"] == 7


def test_every_stamp_waits_for_the_device(watch: Watch) -> None:
    stamps = StepClock(watch.synchronize, watches=True)
    stamps.begin(3)
    watch.wait(1)
    stamps.mark("forward")
    stamps.mark("optimizer")
    row = stamps.finish()
    assert watch.synchronized == 2
    assert (row["forward_ms"], row["optimizer_ms"]) == (3, 2)


def trace_of(*spans: tuple[int, int], last: int) -> SyncTrace:
    events = [BucketEvent(("w",), 4, call * MS, done * MS) for call, done in spans]
    return SyncTrace(events, computed_ns=last * MS)


def test_bucket_times_by_hand() -> None:
    # 30 ms of backward, until 40; buckets 12-20, 18-25 and, the last, 30-38.
    # Union: 12-25 is 13, 30-38 is 8, together 21; before 30: 13. Exposed: 40 - 30
    trace = trace_of((12, 20), (18, 25), (30, 38), last=30)
    assert bucket_times(trace, 30, 40 * MS) == {
        "to_last_bucket_ms": 20,
        "comm_exposed_ms": 10,
        "comm_total_ms": 21,
        "comm_span_ms": 28,
        "comm_hidden_ms": 13,
        "last_bucket_at_ns": 30 * MS,
    }


def test_bucket_that_is_still_under_way_is_hidden_in_part() -> None:
    # 12-35 is hidden until 30, when the last bucket is handed over; the union is 12-38
    spans = [(12, 35), (14, 20), (30, 38)]
    times = bucket_times(trace_of(*spans, last=30), 30, 40 * MS)
    assert (times["comm_total_ms"], times["comm_hidden_ms"]) == (26, 18)
    # the last one alone hides nothing
    times = bucket_times(trace_of((30, 38), last=30), 30, 40 * MS)
    assert (times["comm_total_ms"], times["comm_hidden_ms"]) == (8, 0)
    assert bucket_times(SyncTrace(), 30, 40 * MS) == {}


def test_part_of_a_part_gets_a_name_of_its_own(watch: Watch) -> None:
    stamps = StepClock(lambda: None, watches=False)
    stamps.begin(0)
    watch.wait(9)
    stamps.mark("optimizer")
    stamps.carve("optimizer", "optimizer_comm", 4 * MS)
    stamps.carve("optimizer", "nothing", None)
    row = stamps.finish()
    assert (row["optimizer_ms"], row["optimizer_comm_ms"]) == (5, 4)
    # the step is as long as before
    assert row["step_ms"] == 9
    assert "nothing_ms" not in row


def test_work_between_the_parts_of_a_step_is_no_forward(watch: Watch) -> None:
    """As `invariant` adds gradients up: before the next part begins, or after one."""

    class Adding(Strategy):
        @contextmanager
        def micro_step(self, shard: int, is_last: bool) -> Iterator[None]:
            if shard > 0:
                watch.wait(7)
            yield
            watch.wait(11)

    def loss(model: nn.Module, inputs: None) -> Tensor:
        watch.wait(2)
        return next(model.parameters()).sum()

    parts = [MicroBatch(0, None, 1, 3, (), shard) for shard in range(3)]
    batches = SimpleNamespace(micro_batches=lambda step: parts, loss=loss)
    data: Any = SimpleNamespace(
        open=lambda *_: batches, smaller=lambda: None, digest=lambda: 0
    )
    config = RunConfig(lambda: nn.Linear(1, 1), data, steps=1, sync=Adding)
    worker = Worker(config, observer=StepObserver)
    worker.train(range(1))
    (row,) = worker.observer.result.timings
    # three passes of 2 ms; 7 ms before the second and third part, 11 after each
    assert (row["forward_ms"], row["backward_ms"]) == (6, 47)
