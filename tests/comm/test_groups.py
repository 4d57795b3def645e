"""The functions of minitrain.comm.groups."""

import copy
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from waiting import GENEROUS_S

from minitrain.comm import groups as ddp
from minitrain.comm.groups import group_timeout_s, start_up
from minitrain.core.errors import RankError, UserError
from minitrain.harness.launcher import launch


def test_without_an_environment_it_is_a_world_of_one() -> None:
    with ddp.distributed() as (rank, world_size):
        assert (rank, world_size) == (0, 1)
        assert ddp.is_main_process()
        ddp.barrier()
    assert not dist.is_initialized()
    # these work without a group
    assert ddp.is_main_process()
    ddp.barrier()
    ddp.cleanup()


def test_group_is_left_when_the_body_fails() -> None:
    with pytest.raises(ZeroDivisionError), ddp.distributed():
        _ = 1 / 0
    assert not dist.is_initialized()


def test_incomplete_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="backend = 'mpi': must be one of gloo, nccl"):
        ddp.init_distributed("mpi")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"MASTER_ADDR is missing.*") as caught:
        ddp.init_distributed()
    assert str(caught.value).endswith("without torchrun, unset RANK, WORLD_SIZE")


def test_nccl_without_gpus_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match=r"1 processes need 1 GPUs.* has 0"):
        ddp.init_distributed("nccl")
    assert ddp.local_device("gloo") == torch.device("cpu")


def test_occupied_port_is_one_line(monkeypatch, taken_port: str) -> None:
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**values, "MASTER_PORT": taken_port}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"MASTER_PORT = {taken_port} is in use"):
        ddp.init_distributed()


def test_a_wrapper_can_be_copied() -> None:
    with ddp.distributed():
        wrapped = ddp.wrap_for_ddp(nn.Linear(1, 1))
        copied = copy.deepcopy(wrapped)
        copied(torch.ones(1, 1)).sum().backward()
        assert torch.equal(copied.module.weight, wrapped.module.weight)
        # else its Reducer is the last owner of the group, and may hang (wrap_for_ddp)
        del copied


def leave_before_the_wrapper_goes() -> None:
    # one round in five or so hung when the Reducer was the group's last owner
    for _ in range(20):
        with ddp.distributed() as (rank, _):
            assert ddp.is_main_process() == (rank == 0)
            wrapped = ddp.wrap_for_ddp(nn.Linear(1, 1))
            wrapped(torch.ones(1, 1)).sum().backward()
        del wrapped


def test_leaving_the_group_before_the_wrapper_goes_does_not_hang() -> None:
    launch(leave_before_the_wrapper_goes, 2, timeout_s=GENEROUS_S)


def wait_for_a_rank_that_never_comes(joins: bool) -> None:
    rank = int(os.environ["RANK"])
    ddp.STARTUP_S = 3
    if joins or rank == 0:
        ddp.init_distributed(timeout_s=3)
    if rank == 0:
        ddp.barrier()
    time.sleep(1000)


@pytest.mark.parametrize("joins", [True, False])
def test_a_missing_rank_ends_the_wait_within_the_limit(joins: bool) -> None:
    start = time.monotonic()
    said = r"^rank 1 .*: no answer within 3 s, hangs in .*test_groups"
    with pytest.raises(RankError, match=said):
        launch(wait_for_a_rank_that_never_comes, 2, joins, timeout_s=2 * GENEROUS_S)
    assert time.monotonic() - start < GENEROUS_S


def start_late() -> tuple[float, float]:
    late_s = 0.7 if os.environ["RANK"] == "1" else 0
    time.sleep(late_s)
    with ddp.distributed(timeout_s=0.5):
        with start_up():
            within_s = group_timeout_s()
            time.sleep(late_s)
            ddp.barrier()
        return within_s, group_timeout_s()


def test_a_rank_that_starts_late_is_waited_for() -> None:
    assert launch(start_late, 2, timeout_s=GENEROUS_S) == [(0.5, 0.5)] * 2
