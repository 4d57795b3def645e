"""What each rank does in a sweep of all-reduces (:mod:`sweep`).

Speeds of a machine drift, so backends are interleaved trial by trial, in one set of
processes, beside a plain copy of the same bytes that all ranks make at once: the limit
that the memory of the machine sets. What drifts slowly must not look like an effect of
the size, so each size is visited several times, in another order each time.

Numbers are small and whole, so their sum is exact, and they differ from trial to trial:
what an earlier one left behind is wrong.
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
# trials of a size and backend: NUM_WARMUP more at the start of each visit
NUM_WARMUP, MIN_TRIALS, MAX_TRIALS = 2, 9, 999
NUM_VISITS = 3
SEED = 35000
TIMEOUT_S = 300
# of the numbers that are sent; a prime, so that it fits no power of two
PERIOD = 251

AllReduce = Callable[[Tensor], Any]


class Backend(NamedTuple):
    """``start`` is called on every rank; what it returns adds up tensors in place, and
    is done when it returns.
    """

    start: Callable[[ExitStack], AllReduce]
    device: str = "cpu"


class Trial(NamedTuple):
    """One rank's share of one all-reduce or copy: from when to when, in seconds of
    ``time.perf_counter``, which the processes of a host share. What is not ``timed``
    warms up, but must be right all the same.
    """

    start: float
    end: float
    is_right: bool
    timed: bool


# a trial of each backend, and of the copy, by name
Round = dict[str, Trial]


def backends(world_size: int) -> dict[str, Backend]:
    """What can be measured here: nccl only where every rank has a GPU of its own."""
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
    """A tensor that a rank sends, and the knowledge of what must come back."""

    def __init__(self, num_bytes: int, device: str) -> None:
        count = num_bytes // torch.float32.itemsize
        period = torch.arange(PERIOD, dtype=torch.float32, device=device)
        self._pattern = period.repeat(-(-count // PERIOD))[:count]
        self.tensor = torch.empty_like(self._pattern)
        self._other = torch.empty_like(self._pattern)
        self._rest = torch.empty((), device=device)

    def fill(self, number: int) -> None:
        """Get ready for the trial of that number."""
        torch.add(self._pattern, number % PERIOD + dist.get_rank(), out=self.tensor)
        if self.tensor.is_cuda:
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Get ready for a copy: there is nothing yet where it goes."""
        self._other.fill_(-1)

    def copy(self) -> None:
        """The plain copy."""
        self._other.copy_(self.tensor)

    def is_copied(self) -> bool:
        """Whether the copy is what was sent."""
        return torch.equal(self._other, self.tensor)

    def is_sum(self, number: int) -> bool:
        """Whether the tensor holds what all ranks sent, added up."""
        size = dist.get_world_size()
        rest = size * (number % PERIOD) + size * (size - 1) // 2
        torch.add(self._rest.fill_(rest), self._pattern, alpha=size, out=self._other)
        return torch.equal(self.tensor, self._other)


def be_a_rank(
    subjects: Mapping[str, Backend], sizes: Sequence[int], seconds_per_size: float
) -> list[dict[str, list[Trial]]]:
    """For each of ``sizes`` the trials of each backend and of the copy; call in every
    rank's process.
    """
    with distributed(timeout_s=TIMEOUT_S) as (_, world_size), ExitStack() as stack:
        # ranks leave it closer together than gloo's barrier
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
    """The order in which sizes are measured, by their index: each NUM_VISITS times, all
    of them before any comes again; the same on every rank.
    """
    rng = random.Random(SEED)
    return [
        i for _ in range(NUM_VISITS) for i in rng.sample(range(num_sizes), num_sizes)
    ]


def _rounds(
    turns: Callable[[int, bool], Round], numbers: Iterator[int], seconds: float
) -> list[Round]:
    """As many rounds as fit in ``seconds``, the same number on every rank; warm-up
    first.
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
