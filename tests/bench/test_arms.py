from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import tiny_params, tiny_samples

from minitrain.bench import arms
from minitrain.bench.arms import (
    WITHOUT_SYNC,
    Arm,
    Contestant,
    arms_of,
    close,
    enter,
    measure,
    take_turns,
)
from minitrain.bench.ledger import CollectiveLedger
from minitrain.comm.groups import distributed
from minitrain.core.errors import UserError
from minitrain.core.params import Params
from minitrain.data.order import GlobalOrder
from minitrain.data.text import VOCAB_SIZE
from minitrain.harness.launcher import launch
from minitrain.model.factory import build_model
from minitrain.sync.catalog import PLAIN, find_strategy
from minitrain.sync.strategy import Strategy
from minitrain.train.step_record import sha256_tensor

STEPS = 2


def params(*world_sizes: int) -> Params:
    tiny = tiny_params()
    gloo = tiny.gloo.model_copy(update={"world_sizes": list(world_sizes)})
    baseline = tiny.baseline.model_copy(update={"steps_per_round": STEPS})
    return tiny.model_copy(update={"gloo": gloo, "baseline": baseline})


@pytest.mark.quick
def test_arms_of_two_world_sizes() -> None:
    small = params(1, 2, 4)
    found = {
        arm.name: (arm.params(small).train.sync, arm.processes, arm.timed)
        for arm in arms_of(small)
    }
    assert found == {
        "one_process": (PLAIN, 1, False),
        "one_process_all_cores": (PLAIN, 1, False),
        "gloo-2": ("ddp", 2, False),
        "gloo-2-no-sync": (PLAIN, 2, False),
        "gloo-4": ("ddp", 4, False),
        "gloo-4-no-sync": (PLAIN, 4, False),
        "gloo-4-again": ("ddp", 4, False),
        "gloo-4-no-sync-again": (PLAIN, 4, False),
        "one_process-again": (PLAIN, 1, False),
        "gloo-4-timed": ("ddp", 4, True),
    }
    assert find_strategy(PLAIN) is Strategy
    # one process still has A/A pairs
    alone = "one_process one_process_all_cores gloo-1 gloo-1-again one_process-again"
    assert [arm.name for arm in arms_of(params(1))] == [*alone.split(), "gloo-1-timed"]


def test_threads_of_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "usable_cores", lambda: 7)
    threads = {arm.name: arm.threads for arm in arms_of(params(1, 2))}
    assert threads.pop("one_process_all_cores") == 7
    assert {*threads.values()} == {params(1).train.threads_per_process} == {1}


class Noted(Contestant):
    def __init__(self, seen: list[Any]) -> None:
        self.arm, self.group, self.next_step = Arm("noted", 2, 3), None, 0
        self.seen = seen
        one = SimpleNamespace(global_targets=5)
        batches = SimpleNamespace(micro_batches=lambda _: [one])
        observer = SimpleNamespace(shares=lambda: seen.append("loss"))
        self.worker: Any = SimpleNamespace(observer=observer, batches=batches)

    def train(self, steps: Iterable[int]) -> None:
        self.seen.append(f"train {[*steps]}")


def test_barriers_enclose_the_timed_steps_of_a_turn(monkeypatch) -> None:
    """Without the second barrier, the fastest rank would set the time of a turn."""
    seen: list[Any] = []

    def read() -> int:
        seen.append("clock")
        return len(seen)

    monkeypatch.setattr(arms.dist, "barrier", lambda _: seen.append("barrier"))
    monkeypatch.setattr(arms.time, "perf_counter_ns", read)
    monkeypatch.setattr(arms.torch, "set_num_threads", lambda n: seen.append(n))
    _, tokens = Noted(seen).take_turn(2)
    timed = ["barrier", "clock", "train [1, 2]", "barrier", "clock"]
    assert seen == [3, "train [0]", *timed, "loss"]
    assert tokens == 10


def tokens_of_a_turn() -> int:
    """Targets of steps 1 and 2, after an untimed one; first tokens are no targets."""
    own, samples = params(1).train, tiny_samples()
    order = GlobalOrder(50, own.global_batch_size, own.seed)
    batches = [order.batch(step) for step in (1, 2)]
    return sum(len(samples[i]) - 1 for batch in batches for i in batch)


def measured(folder: Path) -> list[dict[str, Any]]:
    with distributed():
        small = params(1, 2)
        return measure(small, folder, range(2), arms_of(small))


def test_every_arm_has_a_row_for_every_round(shards: Path) -> None:
    rows, others = launch(measured, 2, shards, timeout_s=120)
    names = [arm.name for arm in arms_of(params(1, 2))]
    # the second round goes the other way
    assert [row["arm"] for row in rows] == names + names[::-1]
    alone = ("one_process", "one_process_all_cores", "one_process-again")
    assert {row["arm"] for row in others} == {*names} - {*alone}
    by_round = {row["round"]: row["tokens"] for row in rows}
    # all arms train on the same global batches, so on as many real tokens
    assert all(row["tokens"] == by_round[row["round"]] for row in rows)
    assert by_round[0] == tokens_of_a_turn()
    assert all(row["seconds"] > 0 for row in rows)


def sent(folder: Path) -> dict[str, tuple[int, list[str]]]:
    """Return, by arm, bytes in collectives per step and hashes of the parameters."""
    with distributed():
        small = params(2)
        both = [arm for arm in arms_of(small) if arm.processes == 2]
        found = {}
        for contestant in enter(small, folder, both):
            assert contestant is not None
            # after two steps DDP has settled its buckets
            contestant.train(range(2))
            with CollectiveLedger() as ledger:
                contestant.train(range(2, 3))
            size = sum(size for _, size in ledger.traffic.values())
            state = contestant.state_dict().values()
            found[contestant.arm.name] = size, [*map(sha256_tensor, state)]
            contestant.close()
        return found


def test_arms_communicate_or_do_not_as_their_names_say(shards: Path) -> None:
    ranks = launch(sent, 2, shards, timeout_s=120)
    model = build_model(params(2).model, VOCAB_SIZE)
    gradients = sum(4 * p.numel() for p in model.parameters())
    names = [arm.name for arm in arms_of(params(2)) if arm.processes == 2]
    assert len(names) == 5
    for name in names:
        (size, state), (_, other) = (rank[name] for rank in ranks)
        silent = "no-sync" in name
        assert size == (0 if silent else gradients), name
        # each rank with its own shard, or all with the mean
        assert (state != other) is silent, name


class Counting(Contestant):
    asked: list[list[int]]

    def train(self, steps: Iterable[int]) -> None:
        self.asked.append(list(steps))


@dataclass(frozen=True)
class Foreign(Arm):
    def enter(self, params: Params, shards: Path, group: Any) -> Contestant:
        made = Counting(self, params, shards, group)
        made.asked = []
        return made


def counted(folder: Path) -> tuple[list[dict[str, Any]], list[list[int]]]:
    with distributed():
        both = [Arm("own", 2, 1, WITHOUT_SYNC), Foreign("foreign", 2, 1)]
        contestants: list[Any] = enter(params(1, 2), folder, both)
        rows = take_turns(contestants, range(4), STEPS)
        close(contestants)
        return rows, contestants[1].asked


def test_a_foreign_loop_takes_the_same_turns(shards: Path) -> None:
    rows, asked = launch(counted, 2, shards, timeout_s=120)[0]
    # one untimed step, then STEPS timed ones, in every round
    assert asked[:4] == [[0], [1, 2], [3], [4, 5]]
    there, back = ["own", "foreign"], ["foreign", "own"]
    # every second round is reversed, and after two rounds the other arm starts
    assert [row["arm"] for row in rows] == there + back + back + there
    tokens = [row["tokens"] for row in rows]
    assert tokens[::2] == tokens[1::2]


def test_speed_of_what_has_lost_its_numbers_is_not_measured(shards: Path) -> None:
    arm = Arm("lost", 1, 1, (("learning_rate", 1e30),))
    lost = pytest.raises(UserError, match=r"the loss is (nan|inf) at step \d+ on rank")
    with distributed(), lost:
        measure(params(1), shards, range(2), [arm])
