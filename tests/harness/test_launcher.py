import os
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from one_line import refusal
from project import run_python
from waiting import GENEROUS_S

from minitrain.comm.groups import distributed
from minitrain.comm.heartbeat import my_heartbeat
from minitrain.core.errors import RankError
from minitrain.harness.launcher import launch

pytestmark = pytest.mark.real_launch


def rank_and_sum(value: int) -> tuple[int, int, float, torch.dtype, int]:
    # the other ranks take longer to connect than rank 0 runs
    if os.environ["RANK"] != "0":
        time.sleep(0.5)
    with distributed(timeout_s=20) as (rank, world_size):
        total = torch.tensor(float(value * (rank + 1)))
        dist.all_reduce(total)
        here = torch.get_default_dtype(), torch.get_num_threads()
        return rank, world_size, total.item(), *here


def test_results_come_back_by_rank() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        found = launch(rank_and_sum, 4, 5)
    finally:
        torch.set_default_dtype(torch.float32)
    # 5 x (1 + 2 + 3 + 4) = 50; the dtype is the caller's, and threads are set
    assert found == [(rank, 4, 50.0, torch.float64, 1) for rank in range(4)]


def wait_for_rank_1() -> None:
    with distributed() as (rank, _):
        if rank == 1:
            time.sleep(120)
        dist.barrier()


def test_launch_ends_in_time_and_names_the_rank_that_is_missing() -> None:
    start = time.monotonic()
    # the limit counts the import of torch too
    with pytest.raises(RankError, match=r"rank 1 \(.*\): no answer within 30 s, hangs"):
        launch(wait_for_rank_1, 2, timeout_s=30)
    assert time.monotonic() - start < GENEROUS_S


SCRIPT = """
import sys
from minitrain.harness.launcher import launch

FACTOR = 10

def ten_times_rank(offset):
    from minitrain.comm.groups import distributed
    with distributed() as (rank, _):
        return FACTOR * rank + offset

print(launch(ten_times_rank, 2, 1))
"""


def test_script_without_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python(script)
    assert done.stdout == "[1, 11]\n", done.stderr


def only_the_last_sleeps() -> None:
    with distributed(timeout_s=10) as (rank, world_size):
        my_heartbeat().mark(0, "forward")
        if rank == world_size - 1:
            time.sleep(1000)


def test_who_has_answered_is_not_blamed_for_who_hangs() -> None:
    with pytest.raises(RankError, match=r"^rank 1 \(.*no answer within 10 s, hangs"):
        launch(only_the_last_sleeps, 2, timeout_s=GENEROUS_S)


def connection_to_a_file_server() -> None:
    with distributed(timeout_s=20) as (rank, _):
        my_heartbeat().mark(0, "forward")
        if rank == 0:
            raise ConnectionResetError("the file server: Connection reset by peer")
        time.sleep(1000)


def test_network_error_of_a_ranks_own_is_its_own() -> None:
    said = r"^rank 0 \(.* on .*\): ConnectionResetError: the file"
    with pytest.raises(RankError, match=said) as caught:
        launch(connection_to_a_file_server, 2, timeout_s=GENEROUS_S)
    assert "in connection_to_a_file_server" in caught.value.__notes__[0]


def test_what_cannot_be_launched_is_one_line() -> None:
    assert "world_size = 0: must be at least 1" in refusal(launch, print, 0)
    line = refusal(launch, print, 1, threading.Lock())
    assert line.startswith("fn or args cannot be sent to the ranks: TypeError: ")
