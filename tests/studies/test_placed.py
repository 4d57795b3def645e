"""Many settings in one set of processes: rows, and the work of the ranks."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpt_layers import buckets, gpt_layers
from network_runs import TRIALS, Found, Linked, Placed, Sweep, compete
from phases import PHASES
from tiny import tiny_params

from minitrain.bench.arms import Contestant
from minitrain.comm.groups import distributed
from minitrain.core.errors import RankError
from minitrain.core.params import Params
from minitrain.data.text import VOCAB_SIZE
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import PLAIN
from minitrain.sync.strategy import world

pytestmark = pytest.mark.slow
ROUNDS, STEPS = 2, 2
SIZES = (4, 4096)


def placed(name: str, processes: int, sync: str, **own: Any) -> Placed:
    return Placed(name, processes, 1, (("sync", sync),), **own)


ARMS: list[Linked] = [
    placed("one", 1, PLAIN, samples=4),
    placed("two", 2, "ddp", samples=2, n_embd=32),
    placed("three", 3, "ddp", samples=1, n_layer=2),
    Sweep("sums", 2, 1, sizes=SIZES),
]


def be_a_rank(params: Params, shards: Path, arms: Sequence[Linked]) -> Found:
    with distributed():
        return compete(params, shards, arms, range(ROUNDS), STEPS, ())


def test_every_rank_has_a_row_of_each_turn(shards: Path) -> None:
    job = partial(be_a_rank, tiny_params(), shards, ARMS)
    found = launch(job, 3, timeout_s=120)
    rows = [row for one in found for row in one.turns]
    count = Counter((row["arm"], row["rank"]) for row in rows)
    assert count == {
        ("one", 0): ROUNDS,
        **{("two", rank): ROUNDS for rank in range(2)},
        **{("three", rank): ROUNDS for rank in range(3)},
    }
    for row in rows:
        parts = [row[f"{phase}_s"] for phase in PHASES]
        assert min(parts) > 0
        # what lies between the barriers of a turn, and a little more
        assert sum(parts) < row["seconds"]
    # one and two processes see the same four samples per step
    tokens = {(r["arm"], r["round"], r["rank"]): r["tokens"] for r in rows}
    for number in range(ROUNDS):
        assert tokens["one", number, 0] == tokens["two", number, 1]
    # two of them also sum
    for one in found[:2]:
        sizes = [trial.num_bytes for trial in one.trials]
        assert sizes == [size for size in SIZES for _ in range(TRIALS)] * ROUNDS
        assert all(trial.end > trial.start for trial in one.trials)
    # on one clock: no rank is done before the last has started
    for first, second in zip(*(one.trials for one in found[:2]), strict=True):
        assert max(first.start, second.start) < min(first.end, second.end)


def wrong_sums(*arguments: Any) -> Found:
    def add_one(tensor: torch.Tensor, **_: Any) -> None:
        tensor.add_(1)

    dist.all_reduce = add_one
    return be_a_rank(*arguments)


def test_wrong_sum_is_an_error(shards: Path) -> None:
    with pytest.raises(RankError, match=r"sums, 4 bytes: rank \d got a wrong sum"):
        launch(wrong_sums, 2, tiny_params(), shards, ARMS[-1:], timeout_s=120)


def bucket_bytes(params: Params, shards: Path, arm: Placed) -> list[int]:
    with distributed():
        folder = shards / "world-2"
        contestant = Contestant(arm, arm.params(params), folder, world())
        # DDP rebuilds its buckets after the first step
        contestant.take_turn(2)
        return [event.num_bytes for event in contestant.worker.sync.trace.events]


@pytest.mark.parametrize("cap_mb", [None, 0.001, 0.01])
def test_buckets_are_those_of_the_cost_model(
    cap_mb: float | None, shards: Path
) -> None:
    """The model assumes MiniGPT's layers and DDP's bucket rule."""
    changes = (("sync", "ddp"), ("bucket_cap_mb", cap_mb))
    arm = Placed("two", 2, 1, changes, True, n_layer=2, n_embd=16, samples=2)
    params = tiny_params()
    found = launch(bucket_bytes, 2, params, shards, arm, timeout_s=120)[0]
    layers = gpt_layers(2, 16, params.model.block_size, VOCAB_SIZE)
    assert found == [bucket.num_bytes for bucket in buckets(layers, cap_mb)]
