"""Hosts that add inside first: their bits, what they send, and what is seen of a fault.

The hosts are made up: a rank says of itself on which one it is.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from resume_cases import CASES, write_samples
from resumed import SAVING, UNDISTURBED, differing, run_stopped
from test_strategies import LIMIT_S, large_batches, trial_of, with_dropout
from thorough import thorough_after
from torch import Tensor, nn
from waiting import GENEROUS_S

from minitrain.check.data_parallel import examine
from minitrain.check.trial import run_ranks
from minitrain.comm import sockets
from minitrain.comm.groups import distributed
from minitrain.core.errors import RankError
from minitrain.data.batches import MicroBatch
from minitrain.harness.launcher import launch
from minitrain.sync.guarantees import Defaults
from minitrain.sync.hierarchical import Hierarchical
from minitrain.train.config import RunConfig
from minitrain.train.worker import Worker

SMALL = Defaults(bucket_cap_mb=0.001)
UNUSED = replace(SMALL, find_unused_parameters=True)
TWO_BY_TWO = (0, 0, 1, 1)


def live_on(host: int) -> None:
    """In a process of its own, which ends with this."""
    sockets._host = lambda: (f"host {host}",)


def placed(*where: int) -> type[Hierarchical]:
    """The strategy with rank r on host ``where[r]``."""

    class Placed(Hierarchical):
        def set_up(self) -> None:
            live_on(where[self.rank])
            super().set_up()

    return Placed


def placed_trial(*where: int, **changes: Any) -> RunConfig:
    return replace(trial_of("ddp", **changes), sync=placed(*where))


# three and one; taking turns; all of them on hosts of their own; settings
RUNS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((0, 0, 0, 1), {}),
    ((0, 1, 0, 1), {}),
    ((0, 1, 2), {}),
    (TWO_BY_TWO, {"tuning": replace(SMALL, overlap=False)}),
    (TWO_BY_TWO, {"model": "spare_parameter", "tuning": UNUSED}),
    (TWO_BY_TWO, {"factory": with_dropout, "grad_accumulation_steps": 2}),
    (TWO_BY_TWO, {"precision": "fp16", "steps": 6}),
]


@pytest.mark.parametrize(("where", "changes"), thorough_after(5, RUNS))
def test_bits_are_those_of_the_replay(
    where: tuple[int, ...], changes: dict[str, Any]
) -> None:
    trial = large_batches(placed_trial(*where, **{"tuning": SMALL, **changes}))
    ladder = examine(trial, len(where), timeout_s=LIMIT_S)
    assert ladder.verdict == "proven", str(ladder)
    assert ladder.rungs["replay"].verdict == "equal"


class Weights(nn.Module):
    """The gradient of its ``weight`` is the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.weight * inputs).sum()


def sums_of_some() -> list[float]:
    """Two steps of ranks 1, 2 and 3, the second of them on another host."""
    with distributed() as (rank, _):
        live_on(rank % 2)
        # so that ranks are in unlike numbers of groups
        dist.new_group([0, 1])
        some = dist.new_group([1, 2, 3])
        found = []
        for _ in range(2 if rank else 0):
            model = Weights(1)
            sync = Hierarchical(model, Defaults(), group=some)
            sync.begin()
            with sync.micro_step(sync.rank, True):
                sync.module(torch.tensor([3 * 10.0**rank])).backward()
            sync.reduce()
            sync.close()
            assert model.weight.grad is not None
            found.append(model.weight.grad.item())
        dist.barrier()
    return found


def test_group_of_some_ranks_and_a_second_one_after_it() -> None:
    first, *others = launch(sums_of_some, 4)
    assert first == []
    assert others == [pytest.approx([1110, 1110])] * 3


def times_of_a_step(overlap: bool) -> list[tuple[Any, Any, int]]:
    """Of each bucket when it was handed over, and reduced, and when the last one was
    there.
    """
    with distributed() as (rank, _):
        live_on(TWO_BY_TWO[rank])
        model = nn.Sequential(*(Weights(600) for _ in range(3)))
        sync = Hierarchical(model, replace(SMALL, overlap=overlap))
        for _ in range(2):
            sync.begin()
            with sync.micro_step(rank, True):
                sync.module(torch.ones(600)).backward()
        sync.close()
    trace = sync.trace
    assert trace.computed_ns is not None
    return [(e.called_ns, e.done_ns, trace.computed_ns) for e in trace.events]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_bucket_is_reduced_when_its_values_are_on_the_rank(overlap: bool) -> None:
    found = launch(times_of_a_step, 4, overlap)
    for rank, times in enumerate(found):
        assert len(times) == 3
        for called, done, computed in times:
            assert 0 < called < done
            # no leader hands back before everything is computed
            assert rank in (0, 2) or computed < done
        began_before = [called < computed for called, _, computed in times]
        assert began_before == [overlap, overlap, False]


def a_share_is_dropped(worker: Worker) -> None:
    if worker.rank == 1:
        sync: Any = worker.sync
        right = sync.sum_over_ranks

        def sum_over_ranks(bucket: Any) -> Any:
            bucket.buffer().zero_()
            return right(bucket)

        sync.sum_over_ranks = sum_over_ranks


def keeps_its_own(worker: Worker, rank: int, collective: str) -> None:
    """Rank ``rank`` ignores what others brought."""
    if worker.rank != rank:
        return
    sync: Any = worker.sync
    right = getattr(sync._memory, collective)

    def wrong(tensor: Tensor) -> None:
        own = tensor.clone()
        right(tensor)
        tensor.copy_(own)

    setattr(sync._memory, collective, wrong)


def hosts_are_noted_otherwise(worker: Worker) -> None:
    worker.sync.trace.hosts = [[0, 2], [1, 3]]


FAULTS: list[tuple[Callable[[Worker], None], str]] = [
    (a_share_is_dropped, "replay_gradients"),
    # a leader sends its own gradients to the other host
    (partial(keeps_its_own, rank=2, collective="all_reduce"), "replay_gradients"),
    (partial(keeps_its_own, rank=3, collective="broadcast"), "ranks"),
    (hosts_are_noted_otherwise, "replay_gradients"),
]


@pytest.mark.parametrize(("fault", "rung"), FAULTS)
def test_fault_is_caught(fault: Callable[[Worker], None], rung: str) -> None:
    ladder = examine(placed_trial(*TWO_BY_TWO, steps=2), 4, fault, timeout_s=LIMIT_S)
    assert rung in ladder.breaches, str(ladder)
    # all ranks are wrong alike, but for the one that does not listen
    assert ("ranks" in ladder.breaches) == (rung == "ranks")


def killed_at_step_3(worker: Worker, victim: int, note: Path) -> None:
    if worker.rank != victim:
        return
    right = worker.batches.micro_batches

    def micro_batches(step: int) -> list[MicroBatch]:
        if step == 3:
            note.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return right(step)

    worker.batches.micro_batches = micro_batches  # type: ignore[method-assign]


# one that follows, then one that leads: another host waits for that over gloo
KILLED = [("hierarchical", 1), ("hierarchical", 2), ("shm", 1), ("one_copy", 1)]


@pytest.mark.parametrize(("name", "victim"), KILLED)
def test_rank_that_is_killed_is_named_and_all_end(
    name: str, victim: int, tmp_path: Path
) -> None:
    trial = trial_of(name, steps=4)
    if name == "hierarchical":
        trial = placed_trial(*TWO_BY_TWO, steps=4)
    note = tmp_path / "killed"
    inject = partial(killed_at_step_3, victim=victim, note=note)
    with pytest.raises(RankError, match=rf"rank {victim} .*: killed by SIGKILL"):
        run_ranks(trial, 4, inject, timeout_s=LIMIT_S)
    assert time.monotonic() - float(note.read_text()) < GENEROUS_S


def test_goes_on_to_the_same_bytes_but_not_on_other_hosts(tmp_path: Path) -> None:
    shards = write_samples(tmp_path / "shards", 3)
    config = CASES["ddp, 3 ranks"].config(shards, 8)
    config = replace(config, sync=placed(0, 0, 1))
    go_on = partial(run_stopped, world_size=3, folder=tmp_path)
    undisturbed, saving = go_on(config, stops=[UNDISTURBED, SAVING])
    assert differing(saving, undisturbed) == []
    (again,) = go_on(config, stops=[6])
    assert {rank.went_on_from for rank in again} == {6}
    assert differing(again, undisturbed) == []
    (moved,) = go_on(replace(config, sync=placed(0, 1, 1)), stops=[6])
    assert {rank.went_on_from for rank in moved} == {0}
    assert "checkpoint not used" in moved[0].said
