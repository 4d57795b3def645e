"""Shared memory against the tree in one process; then ranks that fail."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm import shared_memory
from minitrain.comm.groups import distributed
from minitrain.comm.shared_memory import SharedMemoryGroup
from minitrain.comm.tree import tree_sum
from minitrain.core.errors import RankError
from minitrain.harness.launcher import launch
from minitrain.proof.ulp import same_bits as same_bytes

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -65504.0]
SIZES = [0, 1, 2, 3, 5, 17, 1000]
# of float32: around the switch to shared work, one row, several
LARGE = [65_536, 65_537, 524_288, 600_003]


def inputs(size: int, dtype: torch.dtype, world_size: int) -> list[Tensor]:
    """What every rank brings: known to all, so each can work out the sum."""
    generator = torch.Generator().manual_seed(size)
    if not dtype.is_floating_point:
        shape = (world_size, size)
        return list(torch.randint(-(2**62), 2**62, shape, generator=generator))
    values = torch.randn(world_size, size, generator=generator, dtype=torch.float64)
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    which = torch.randint(0, 9 * len(SPECIAL), values.shape, generator=generator)
    values = torch.where(which < len(special), special[which % len(special)], values)
    return list(values.to(dtype))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, with one NaN as good as another."""
    nan = a.isnan()
    values = (tensor.masked_fill(nan, 0) for tensor in (a, b))
    return torch.equal(nan, b.isnan()) and same_bytes(*values)


def is_right(shared: Any, size: int, dtype: torch.dtype) -> bool:
    buffers = inputs(size, dtype, shared.world_size)
    mine = buffers[shared.rank].clone()
    shared.all_reduce(mine)
    return same_bits(mine, tree_sum(buffers))


def is_handed_out(shared: Any, size: int, dtype: torch.dtype) -> bool:
    buffers = inputs(size, dtype, shared.world_size)
    mine = buffers[shared.rank].clone()
    shared.broadcast(mine)
    return same_bytes(mine, buffers[0])


def traces() -> list[str]:
    """What this process holds of the kind that a group does: sockets and memory."""
    sockets = Path("/proc/net/unix").read_text().splitlines()[1:]
    inodes = {line.split()[6] for line in sockets}
    files = []
    for link in Path("/proc/self/fd").iterdir():
        # the one that lists this folder has gone by now
        with suppress(FileNotFoundError):
            files.append(os.readlink(link))
    found = [file for file in files if "memfd" in file or file[8:-1] in inodes]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted(found) + [line for line in maps if "memfd" in line]


def wrong_sums() -> list[Any]:
    wrong: list[Any] = []
    with distributed():
        before = traces()
        with SharedMemoryGroup() as shared:
            assert traces() != before
            for size in SIZES:
                for dtype in [*FLOATS, torch.int64]:
                    if not is_right(shared, size, dtype):
                        wrong.append((size, dtype))
                    if not is_handed_out(shared, size, dtype):
                        wrong.append(("handed out", size, dtype))
            for does in (is_right, is_handed_out):
                wrong += [n for n in LARGE if not does(shared, n, torch.float32)]
        # rows so short that every tensor passes in many pieces, one right after another
        shared_memory.ROW_BYTES, shared_memory.SMALL_BYTES = 1024, 256
        with SharedMemoryGroup() as shared:
            for size in torch.randint(0, 2000, (80,), generator=torch.Generator()):
                does = is_handed_out if size % 3 == 0 else is_right
                if not does(shared, int(size), FLOATS[int(size) % 4]):
                    wrong.append(("short rows", int(size)))
        assert traces() == before
    return wrong


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_same_bits_as_the_tree(world_size: int) -> None:
    assert launch(wrong_sums, world_size) == [[]] * world_size


def one_rank_is_killed(folder: Path) -> None:
    with distributed() as (rank, _):
        before = traces()
        shared = SharedMemoryGroup()
        tensor = torch.zeros(200_000)
        if rank == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            while True:
                shared.all_reduce(tensor)
        except RankError as error:
            message = str(error)
        left = len(traces()) - len(before)
        (folder / f"rank {rank}").write_text(f"{message}; {left} left")


def test_rank_that_is_killed_is_named_at_once_and_nothing_remains(
    tmp_path: Path,
) -> None:
    # the others answer within the 2 s that launch leaves them
    with pytest.raises(RankError, match=r"rank 1 .*: killed by SIGKILL"):
        launch(one_rank_is_killed, 3, tmp_path)
    line = "rank 1 is lost: connection closed by peer; 0 left"
    answers = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert answers == {f"rank {rank}": line for rank in (0, 2)}


def one_rank_is_silent() -> tuple[list[str], float]:
    # a profiler's signals, every 50 ms: each of them began the wait again
    signal.signal(signal.SIGALRM, lambda *_: None)
    with distributed() as (rank, _):
        # in a group of some ranks, errors call them by their names in the whole
        some = dist.new_group([0, 2])
        messages: list[str] = []
        began = time.monotonic()
        if rank != 1:
            with SharedMemoryGroup(some, timeout_s=0.5) as shared:
                shared.all_reduce(torch.zeros(1))
                if rank == 2:
                    time.sleep(2)
                signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
                for _ in range(2):
                    try:
                        shared.all_reduce(torch.zeros(100_000))
                    except (RankError, ValueError) as error:
                        messages.append(str(error))
                signal.setitimer(signal.ITIMER_REAL, 0)
        took_s = time.monotonic() - began
        dist.barrier()
        return messages, took_s


def test_rank_that_is_silent_is_named_and_the_group_is_closed() -> None:
    messages, seconds = zip(*launch(one_rank_is_silent, 3), strict=True)
    closed = "all_reduce: the SharedMemoryGroup is closed"
    silent = ["rank 2 is lost: no answer within 0.5 s", closed]
    # the silent one still finds what rank 0 had sent, and then hears of it
    assert [*messages] == [silent, [], ["rank 2 is lost: says rank 0"]]
    assert seconds[0] < 2


# what ranks 0 and 2 call, and what rank 1 does
KINDS = [
    (("all_reduce", 3, "float32"), ("all_reduce", 4, "float32")),
    (("all_reduce", 100_000, "float32"), ("all_reduce", 50_000, "float64")),
    (("broadcast", 3, "float32"), ("all_reduce", 3, "float32")),
]


def message_of_calls_that_differ(usual: Any, odd: Any) -> str:
    with distributed() as (rank, _):
        name, size, dtype = odd if rank == 1 else usual
        mine = torch.ones(size, dtype=getattr(torch, dtype))
        with SharedMemoryGroup() as shared:
            shared.all_reduce(torch.ones(5))
            with pytest.raises(RankError) as error:
                getattr(shared, name)(mine)
            assert torch.equal(mine, torch.ones_like(mine))
            with pytest.raises(ValueError, match="is closed"):
                shared.broadcast(mine)
    return str(error.value)


@pytest.mark.parametrize(("usual", "odd"), KINDS)
def test_calls_that_differ_are_refused(usual: Any, odd: Any) -> None:
    """Else they give numbers, and no error."""
    here, there = ("{} of {} torch.{}".format(*call) for call in (usual, odd))
    must = "must be the same on every rank"
    assert launch(message_of_calls_that_differ, 3, usual, odd) == [
        f"rank 1 brings {there}, and rank 0 {here}: {must}",
        f"rank 0 brings {here}, and rank 1 {there}: {must}",
        f"rank 1 brings {there}, and rank 2 {here}: {must}",
    ]
