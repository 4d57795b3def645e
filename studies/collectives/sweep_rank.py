"""One rank of a sweep of all-reduces (:mod:`sweep`).

Machine speed drifts, so backends are interleaved trial by trial in one set of
processes, together with a plain copy of the same bytes by all ranks, the limit set by
memory bandwidth. To separate drift from the effect of the size, each size is visited
several times in different orders.

Values are small integers, so that sums are exact. They change from trial to trial, so
that a stale result is detected as wrong.
"""

import itertools
import math
import mmap
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import distributed, is_main_process
from minitrain.comm.shared_memory import SharedMemoryGroup
from minitrain.comm.sockets import meet
from minitrain.core.progress import progress

COPY = "copy"
# trials per size and backend, without NUM_WARMUP at the start of each visit
NUM_WARMUP, MIN_TRIALS, MAX_TRIALS = 2, 9, 999
NUM_VISITS = 3
SEED = 35000
TIMEOUT_S = 300
# period of the values sent; a prime, which divides no power of two
PERIOD = 251

AllReduce = Callable[[Tensor], Any]


class Backend(NamedTuple):
    """Backend of all-reduces; ``start`` is called on every rank and returns a function
    that sums tensors in place, synchronously.
    """

    start: Callable[[ExitStack], AllReduce]
    device: str = "cpu"


class Trial(NamedTuple):
    """One rank's all-reduce or copy: start and end in seconds of ``time.perf_counter``,
    which processes of a host share. Trials that are not ``timed`` are warm-up, but
    checked.
    """

    start: float
    end: float
    is_right: bool
    timed: bool


# one trial of each backend and of the copy, by name
Round = dict[str, Trial]


def backends(world_size: int) -> dict[str, Backend]:
    """Return the available backends: nccl only if every rank has a GPU."""
    found = {"gloo": Backend(_gloo), "shm": Backend(_shared_memory)}
    if torch.cuda.device_count() >= world_size:
        found["nccl"] = Backend(_nccl, "cuda")
    return found


def _gloo(_: ExitStack) -> AllReduce:
    return dist.all_reduce


def _shared_memory(stack: ExitStack) -> AllReduce:
    return stack.enter_context(SharedMemoryGroup(timeout_s=TIMEOUT_S)).all_reduce


def _nccl(_: ExitStack) -> AllReduce:
    torch.cuda.set_device(dist.get_rank())
    group = dist.new_group(backend="nccl")

    def all_reduce(tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()

    return all_reduce


class _Payload:
    """Tensor that a rank sends, with its expected result."""

    def __init__(self, num_bytes: int, device: str) -> None:
        count = num_bytes // torch.float32.itemsize
        period = torch.arange(PERIOD, dtype=torch.float32, device=device)
        self._pattern = period.repeat(-(-count // PERIOD))[:count]
        self.tensor = torch.empty_like(self._pattern)
        self._other = torch.empty_like(self._pattern)
        self._rest = torch.empty((), device=device)

    def fill(self, number: int) -> None:
        """Fill in the values for a trial."""
        torch.add(self._pattern, number % PERIOD + dist.get_rank(), out=self.tensor)
        if self.tensor.is_cuda:
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Clear the destination of the copy."""
        self._other.fill_(-1)

    def copy(self) -> None:
        """Run the plain copy."""
        self._other.copy_(self.tensor)

    def is_copied(self) -> bool:
        """Return true if the copy equals its source."""
        return torch.equal(self._other, self.tensor)

    def is_sum(self, number: int) -> bool:
        """Return true if the tensor is the sum over all ranks."""
        size = dist.get_world_size()
        rest = size * (number % PERIOD) + size * (size - 1) // 2
        torch.add(self._rest.fill_(rest), self._pattern, alpha=size, out=self._other)
        return torch.equal(self.tensor, self._other)


def be_a_rank(
    subjects: Mapping[str, Backend], sizes: Sequence[int], seconds_per_size: float
) -> list[dict[str, list[Trial]]]:
    """Run the trials of each backend and of the copy for each of ``sizes``; call it in
    every rank.
    """
    with distributed(timeout_s=TIMEOUT_S) as (_, world_size), ExitStack() as stack:
        # ranks leave this barrier closer together than gloo's
        links, _ = meet(None, mmap.PAGESIZE, TIMEOUT_S)
        stack.callback(links.close)
        reduce: dict[str, AllReduce | None] = {
            name: backend.start(stack) for name, backend in subjects.items()
        }
        reduce[COPY] = None
        devices = {name: backend.device for name, backend in subjects.items()}
        devices[COPY] = "cpu"
        numbers = itertools.count()
        order = visits(len(sizes))
        title = f"all-reduce, {world_size} processes"
        found: list[dict[str, list[Trial]]] = [{n: [] for n in reduce} for _ in sizes]
        for index in progress(order, title, total=len(order), show=is_main_process()):
            made = {d: _Payload(sizes[index], d) for d in {*devices.values()}}
            payloads = {name: made[device] for name, device in devices.items()}
            turns = partial(_take_turns, reduce, payloads, links.barrier)
            for trials in _rounds(turns, numbers, seconds_per_size / NUM_VISITS):
                for name, trial in trials.items():
                    found[index][name].append(trial)
        return found


def visits(num_sizes: int) -> list[int]:
    """Return the order of size indices: each NUM_VISITS times, one pass over all sizes
    after another; the same on every rank.
    """
    rng = random.Random(SEED)
    return [
        i for _ in range(NUM_VISITS) for i in rng.sample(range(num_sizes), num_sizes)
    ]


def _rounds(
    turns: Callable[[int, bool], Round], numbers: Iterator[int], seconds: float
) -> list[Round]:
    """Yield as many rounds as fit in ``seconds``, warm-up first; the same number on
    every rank.
    """
    rounds, fastest = [], math.inf
    for _ in range(NUM_WARMUP):
        start = time.perf_counter()
        rounds.append(turns(next(numbers), False))
        fastest = min(fastest, time.perf_counter() - start)
    count = _same_for_all(seconds / fastest)
    return rounds + [turns(next(numbers), True) for _ in range(count)]


def _same_for_all(count: float) -> int:
    least = torch.tensor(count, dtype=torch.float64)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return min(max(int(least), MIN_TRIALS // NUM_VISITS), MAX_TRIALS // NUM_VISITS)


def _take_turns(
    reduce: Mapping[str, AllReduce | None],
    payloads: Mapping[str, _Payload],
    barrier: Callable[[], None],
    number: int,
    timed: bool,
) -> Round:
    trials = {}
    for name in reduce if number % 2 == 0 else reversed(list(reduce)):
        payload, all_reduce = payloads[name], reduce[name]
        payload.fill(number)
        act = partial(all_reduce, payload.tensor) if all_reduce else payload.copy
        if not all_reduce:
            payload.clear()
        barrier()
        start = time.perf_counter()
        act()
        end = time.perf_counter()
        is_right = payload.is_sum(number) if all_reduce else payload.is_copied()
        trials[name] = Trial(start, end, is_right, timed)
    return trials
