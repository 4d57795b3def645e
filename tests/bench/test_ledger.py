import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny import tiny_params

from minitrain.bench.ledger import CollectiveLedger, count_step
from minitrain.comm import sockets
from minitrain.comm.groups import distributed
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import STRATEGIES
from minitrain.sync.strategy import Traffic

# its hook communicates from callback threads, outside the dispatch mode
UNCOUNTED = ("powersgd",)


def counted_and_expected(
    name: str, shards: Path, redundant: bool = False, precision: str = "float32"
) -> tuple[Traffic, Traffic]:
    model = tiny_params().model.model_copy(update={"n_layer": 2})
    params = tiny_params(sync=name, precision=precision).model_copy(
        update={"model": model}
    )
    if redundant:
        step = torch.optim.AdamW.step

        def again(optimizer: Any, *rest: Any) -> Any:
            dist.all_reduce(optimizer.param_groups[0]["params"][0].grad)
            return step(optimizer, *rest)

        # the process ends with this function
        torch.optim.AdamW.step = again  # type: ignore[method-assign, assignment]
    # enough for DDP to settle its buckets
    return count_step(params, shards, steps_before=3)


COUNTED = [name for name in STRATEGIES if name not in UNCOUNTED]
# strategies with pairs or chunks; all others send equally from each rank
OF_FOUR = ["reduce_scatter", "invariant", "zero1", "hierarchical"]


@pytest.mark.parametrize(
    ("name", "world_size"),
    [*product(COUNTED, (1, 2)), *((name, 4) for name in OF_FOUR)],
)
def test_counted_is_expected(name: str, world_size: int, shards: Path) -> None:
    for counted, expected in launch(counted_and_expected, world_size, name, shards):
        assert counted == expected
        # on one host ranks that share memory have nothing to send
        silent = ("shm", "invariant_shm", "one_copy", "hierarchical")
        if name not in silent and world_size > 1:
            assert sum(size for _, size in counted.values()) > 0


def test_agreement_on_an_overflow_is_expected(shards: Path) -> None:
    given = "one_copy", shards, False, "fp16"
    for counted, expected in launch(counted_and_expected, 2, *given):
        assert counted == expected == {"all_reduce": (1, 4)}


def counted_on_two_hosts(shards: Path) -> tuple[Traffic, Traffic]:
    """Simulate two hosts with two ranks each, until the process ends."""
    sockets._host = lambda: (f"host {int(os.environ['RANK']) // 2}",)
    return counted_and_expected("hierarchical", shards)


def test_a_host_sends_once(shards: Path) -> None:
    found = launch(counted_on_two_hosts, 4, shards)
    assert all(counted == expected for counted, expected in found)
    leader, other, second_leader, second_other = (counted for counted, _ in found)
    assert other == second_other == {}
    assert leader == second_leader
    # stock DDP, from each of the four
    ddp, _ = launch(counted_and_expected, 4, "ddp", shards)[0]
    assert leader == ddp


def test_redundant_collective_is_counted(shards: Path) -> None:
    for counted, expected in launch(counted_and_expected, 2, "ddp", shards, True):
        ((calls, size),) = counted.values()
        assert calls == expected["all_reduce"][0] + 1
        assert size > expected["all_reduce"][1]


def test_bytes_by_hand() -> None:
    """10 floats in all: 40 bytes, 20 in 16 bits; halves of 5 need no padding."""

    def ledger() -> Traffic:
        with distributed(), CollectiveLedger() as found:
            dist.all_reduce(torch.ones(10))
            dist.all_reduce(torch.ones(10, dtype=torch.bfloat16))
            dist.reduce_scatter_single(torch.ones(5), torch.ones(10))
            dist.all_gather_single(torch.ones(10), torch.ones(5))
            dist.broadcast(torch.ones(3, dtype=torch.float64), 0)
            dist.barrier()
        return found.traffic

    assert launch(ledger, 2)[0] == {
        "all_reduce": (2, 60),
        "reduce_scatter": (1, 40),
        "all_gather": (1, 40),
        "broadcast": (1, 24),
    }
