"""Steps of many settings, and all-reduces between them, in one set of processes.

Settings for fitting and for validation are measured in the same rounds, so that drift
of the machine affects both. A setting has its own width, depth, batch, number of
processes and link; links are loopback and cables of any rate between two hosts
(:mod:`network_namespaces`).
"""

import mmap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from link_rate import LOOPBACK, bytes_per_s
from network_namespaces import BURST_BYTES, host_of, over, shape
from phases import PHASES, Phases

from minitrain.bench.arms import Arm, Contestant, Row, close, take_turns
from minitrain.comm.groups import group_timeout_s
from minitrain.comm.sockets import Links, meet
from minitrain.core.cpu_load import Usage
from minitrain.core.errors import EvidenceError
from minitrain.core.params import Params
from minitrain.sync.strategy import world
from minitrain.train.config import config_of
from minitrain.train.worker import Worker

# all-reduces per size and round, after one that is not timed
TRIALS = 3
# values whose sums are exact, and that differ each time
PERIOD = 251
TIMEOUT_S = 300


@dataclass(frozen=True)
class Linked(Arm):
    """Arm over ``link``: loopback, or the rate of a cable such as ``100mbit``."""

    link: str = LOOPBACK


@dataclass(frozen=True)
class Placed(Linked):
    """Arm with its own model and ``samples`` per process and step; see :class:`Arm`."""

    n_layer: int = 1
    n_embd: int = 16
    samples: int = 1

    def params(self, params: Params) -> Params:
        """Return ``params`` with the changes, batch and model of this setting."""
        changed = super().params(params)
        size = self.samples * self.processes
        changed = changed.with_train(global_batch_size=size)
        sizes = {"n_layer": self.n_layer, "n_embd": self.n_embd}
        model = changed.model.model_copy(update=sizes)
        return changed.model_copy(update={"model": model})


@dataclass(frozen=True)
class Sweep(Linked):
    """All-reduces of ``sizes`` in bytes, multiples of 4."""

    sizes: tuple[int, ...] = ()


class Trial(NamedTuple):
    """Start and end of an all-reduce on one rank, on the clock of the machine."""

    arm: str
    num_bytes: int
    start: float
    end: float


class Seat(NamedTuple):
    """Communication of a rank: the group of an arm, the namespaces of the two hosts
    (none over loopback), and the barrier of the group.
    """

    group: dist.ProcessGroup
    hosts: Sequence[str]
    links: Links

    def shape(self, link: str) -> None:
        """Set the rate of the cable to ``link`` before any rank sends."""
        if link != LOOPBACK and dist.get_rank(self.group) == 0:
            for path in self.hosts:
                shape(path, link)
        self.links.barrier()


class PlacedContestant(Contestant):
    """Setting on one rank; ``phases`` has the seconds of each phase, a row per turn."""

    def __init__(self, arm: Placed, params: Params, shards: Path, seat: Seat) -> None:
        self.arm, self.group, self.next_step = arm, seat.group, 0
        self._seat, self._link = seat, arm.link
        # the files for one rank work for any number of ranks
        config = config_of(arm.params(params), shards / "world-1", 1)
        self.worker = Worker(config, group=seat.group, timed=False, observer=Phases)
        self.phases: list[list[float]] = []

    def take_turn(self, num_steps: int) -> tuple[float, int]:
        """See :class:`Contestant`; the rate of the link is already set."""
        self._seat.shape(self._link)
        found = super().take_turn(num_steps)
        observer = self.worker.observer
        assert isinstance(observer, Phases)
        timed = zip(*observer.steps[-num_steps:], strict=True)
        self.phases.append([sum(seconds) for seconds in timed])
        observer.steps.clear()
        return found


class SweepContestant:
    """Sweep on one rank, as a contestant without training; ``trials`` collects its
    all-reduces.
    """

    def __init__(self, arm: Sweep, seat: Seat) -> None:
        self.arm, self._seat = arm, seat
        self.trials: list[Trial] = []
        self._number = 0
        # until the shaper's token bucket is full
        cabled = arm.link != LOOPBACK
        self._rest_s = BURST_BYTES / bytes_per_s(arm.link) if cabled else 0.0

    def take_turn(self, num_steps: int) -> tuple[float, int]:
        """Run a few all-reduces of each size; returns the seconds on this rank and zero
        tokens. Raises EvidenceError for a wrong sum.
        """
        torch.set_num_threads(self.arm.threads)
        self._seat.shape(self.arm.link)
        begun = len(self.trials)
        for size in self.arm.sizes:
            tensor = torch.empty(size // torch.float32.itemsize)
            timed = [self._reduce(tensor) for _ in range(1 + TRIALS)][1:]
            self.trials += timed
        return sum(t.end - t.start for t in self.trials[begun:]), 0

    def _reduce(self, tensor: torch.Tensor) -> Trial:
        group, self._number = self._seat.group, self._number + 1
        rank, count = dist.get_rank(group), dist.get_world_size(group)
        base = self._number % PERIOD
        tensor.fill_(base + rank)
        time.sleep(self._rest_s)
        self._seat.links.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        end = time.perf_counter()
        if not bool((tensor == count * base + count * (count - 1) // 2).all()):
            raise EvidenceError(
                f"{self.arm.name}, {tensor.nbytes} bytes: rank {rank} got a wrong sum"
            )
        return Trial(self.arm.name, tensor.nbytes, start, end)

    def close(self) -> None:
        """Do nothing; there is nothing to free."""


class Found(NamedTuple):
    """Measurements of one rank: rows of turns, all-reduces, and its CPU usage."""

    turns: list[Row]
    trials: list[Trial]
    usage: Usage


def compete(
    params: Params,
    shards: Path,
    arms: Sequence[Linked],
    rounds: Iterable[int],
    num_steps: int,
    hosts: Sequence[str] = (),
) -> Found:
    """Measure all ``arms``, :class:`Placed` and :class:`Sweep`, in every one of
    ``rounds``, with ``num_steps`` timed steps each; call it on every rank of the
    largest arm.

    ``shards`` holds world-1, the files for one process; ``hosts`` are the namespaces of
    :class:`~network_namespaces.Networks`, required for links other than loopback. A row
    of a turn has ``round``, ``arm``, ``rank``, ``processes``, ``tokens``, ``seconds``
    between two barriers, and the seconds of this rank in each phase.
    """
    seats = _seats(arms, hosts)
    contestants = [_enter(arm, params, shards, seats) for arm in arms]
    before = Usage.now()
    # sweeps take turns like other arms
    listed: list[Any] = contestants
    rows = take_turns(listed, rounds, num_steps)
    usage = Usage.now().since(before)
    close(listed)
    for seat in seats.values():
        seat.links.close()
    sweeps = [c for c in contestants if isinstance(c, SweepContestant)]
    phases = {
        c.arm.name: iter(c.phases)
        for c in contestants
        if isinstance(c, PlacedContestant)
    }
    turns = [
        _turn(row, next(phases[row["arm"]])) for row in rows if row["arm"] in phases
    ]
    return Found(turns, [trial for one in sweeps for trial in one.trials], usage)


def _turn(row: Row, phases: Sequence[float]) -> Row:
    names = ("round", "arm", "processes", "tokens", "seconds")
    kept = {name: row[name] for name in names}
    each = dict(zip((f"{phase}_s" for phase in PHASES), phases, strict=True))
    return {**kept, "rank": dist.get_rank(), **each}


def _enter(
    arm: Linked, params: Params, shards: Path, seats: Mapping[tuple[bool, int], Seat]
) -> PlacedContestant | SweepContestant | None:
    seat = seats.get(_place(arm))
    if seat is None:
        return None
    if isinstance(arm, Placed):
        return PlacedContestant(arm, params, shards, seat)
    assert isinstance(arm, Sweep)
    return SweepContestant(arm, seat)


def _place(arm: Linked) -> tuple[bool, int]:
    return arm.link != LOOPBACK, arm.processes


def _seats(
    arms: Sequence[Linked], hosts: Sequence[str]
) -> dict[tuple[bool, int], Seat]:
    """Return the seats of this rank by number of processes and by whether they use the
    cable: one group for each, since gloo's threads wake periodically.
    """
    seats = {}
    for cabled, count in sorted({_place(arm) for arm in arms}):
        path = hosts[host_of(dist.get_rank(), count)] if cabled else None
        group = _group(count, path)
        if dist.get_rank() < count:
            links, _ = meet(group, mmap.PAGESIZE, TIMEOUT_S)
            seats[cabled, count] = Seat(group, hosts if cabled else (), links)
    return seats


def _group(count: int, path: str | None) -> dist.ProcessGroup:
    """Create a group of the first ``count`` ranks, over a host's cable or loopback."""
    if path is None and count == dist.get_world_size():
        return world()
    limit = timedelta(seconds=group_timeout_s())
    ranks = list(range(count))
    if path is None:
        return dist.new_group(ranks, timeout=limit)
    with over(path):
        return dist.new_group(ranks, timeout=limit)
