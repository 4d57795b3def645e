"""What the ranks of one host share: a socket between every two, and one memory.

None of it has a name in the file system, and it is gone with its ranks, after kill -9
too. Linux only.
"""

import mmap
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch.distributed as dist

from minitrain.core.errors import RankError, UserError

# about what it costs to fall asleep and be woken
LISTEN_AWAKE_S = 100e-6
CLOSED = "connection closed by peer"


class Seat(NamedTuple):
    """Where a rank is, and where it can be met."""

    host: tuple[str, ...]
    pid: int
    address: str


def on_one_host(group: dist.ProcessGroup | None = None) -> bool:
    """Whether all ranks of ``group`` can share memory. Collective.

    They can where they run on one kernel and see each other's processes and network.
    """
    return len(set(_gather(_host(), group))) == 1


def _host() -> tuple[str, ...]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]
    except OSError:
        return (socket.gethostname(),)
    return (boot, *spaces)


def _gather(mine: Any, group: dist.ProcessGroup | None) -> list[Any]:
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, mine, group=group)
    return everyones


def meet(
    group: dist.ProcessGroup | None, memory_bytes: int, timeout_s: float
) -> tuple["Links", mmap.mmap]:
    """Link all ranks of ``group`` and map one memory of zeros in each. Collective.

    Raises UserError unless all are on one host, and RankError that names a rank which
    ends meanwhile or does not answer for ``timeout_s`` seconds.
    """
    rank, names = dist.get_rank(group), dist.get_process_group_ranks(group)
    with ExitStack() as stack:
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        door.settimeout(timeout_s)
        # a leading zero: an abstract address, which no file stands for
        address = f"\0minitrain-{secrets.token_hex(16)}"
        if rank == 0:
            memory = os.memfd_create("minitrain")
            stack.callback(os.close, memory)
            # all of it now: later, a shortage would kill whoever writes
            os.posix_fallocate(memory, 0, memory_bytes)
            door.bind(address)
            door.listen(len(names))
        seats = _gather(Seat(_host(), os.getpid(), address), group)
        _require_one_host(names, seats)
        links = Links(rank, names, timeout_s)
        if rank == 0:
            links.hand_out(door, [seat.pid for seat in seats], memory)
        else:
            memory = links.receive(door, seats[0].address)
            stack.callback(os.close, memory)
        return links, mmap.mmap(memory, memory_bytes)


def _require_one_host(names: Sequence[int], seats: Sequence[Seat]) -> None:
    for name, seat in zip(names, seats, strict=True):
        if seat.host != seats[0].host:
            raise UserError(
                f"shared memory: rank {name} is on another host than rank {names[0]}, "
                "or in a container of its own; it needs all ranks on one"
            )


class Links:
    """A socket to every other rank; ``names`` are what errors call them.

    ``timeout_s``: seconds that any wait for another rank may take.
    """

    def __init__(self, rank: int, names: Sequence[int], timeout_s: float) -> None:
        self._rank = rank
        self._names = names
        self._timeout_s = timeout_s
        self._peers: dict[int, socket.socket] = {}

    def hand_out(self, door: socket.socket, pids: list[int], memory: int) -> None:
        """As rank 0: make a socket pair for every two ranks, and give each rank its
        ends and ``memory``, a file descriptor.
        """
        ends: dict[tuple[int, int], socket.socket] = {}
        with ExitStack() as stack:
            for a, b in combinations(range(len(pids)), 2):
                one, other = socket.socketpair()
                ends[a, b] = stack.enter_context(one)
                ends[b, a] = stack.enter_context(other)
            missing = {pid: rank for rank, pid in enumerate(pids) if rank != 0}
            while missing:
                try:
                    line, _ = door.accept()
                except TimeoutError:
                    self._give_up(min(missing.values()), self._silence)
                with line:
                    # anybody on this host can knock; the kernel says who it is
                    who = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    rank = missing.pop(struct.unpack("@iII", who)[0], None)
                    if rank is None:
                        continue
                    theirs = [
                        end.fileno() for key, end in ends.items() if key[0] == rank
                    ]
                    # one that has gone again is missed at the first barrier
                    with suppress(OSError):
                        socket.send_fds(line, [b"."], [memory, *theirs])
            self._keep({key[1]: end.dup() for key, end in ends.items() if key[0] == 0})

    def receive(self, door: socket.socket, address: str) -> int:
        """As another rank: the other side of :meth:`hand_out` -> ``memory``.

        Raises RankError where rank 0 ends or does not answer in time.
        """
        try:
            door.connect(address)
            flags = socket.MSG_CMSG_CLOEXEC
            _, fds, _, _ = socket.recv_fds(door, 1, len(self._names), flags)
        except TimeoutError:
            self._give_up(0, self._silence)
        except OSError:
            fds = []
        if not fds:
            self._give_up(0, CLOSED)
        ends = [socket.socket(fileno=fd) for fd in fds[1:]]
        others = [rank for rank in range(len(self._names)) if rank != self._rank]
        self._keep(dict(zip(others, ends, strict=True)))
        return fds[0]

    def _keep(self, peers: dict[int, socket.socket]) -> None:
        seconds, fraction = divmod(self._timeout_s, 1)
        limit = struct.pack("@ll", int(seconds), int(fraction * 1e6))
        for peer in peers.values():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._peers = peers

    def barrier(self) -> None:
        """Wait until every rank is here.

        Raises RankError, in every rank, that names the first one lost: it ended, left,
        or was silent for too long. The links are closed then.
        """
        for peer in self._peers.values():
            # one that has gone may still have sent its word: heard below
            with suppress(OSError):
                peer.send(bytes([self._rank]))
        for rank, peer in self._peers.items():
            try:
                word = _listen(peer)
            except BlockingIOError:
                self._give_up(rank, self._silence)
            except ConnectionError:
                word = b""
            if not word:
                self._give_up(rank, CLOSED)
            if word[0] != rank:
                self._give_up(word[0], f"says rank {self._names[rank]}")

    def close(self) -> None:
        """Close the sockets: whoever waits for this rank gets an error at once."""
        for peer in self._peers.values():
            peer.close()

    @property
    def _silence(self) -> str:
        return f"no answer within {self._timeout_s:g} s"

    def _give_up(self, lost: int, why: str) -> NoReturn:
        # else the others would take this rank, which leaves now, for the lost one
        for peer in self._peers.values():
            with suppress(OSError):
                peer.send(bytes([lost]))
        self.close()
        raise RankError(f"rank {self._names[lost]} is lost: {why}")


def _listen(peer: socket.socket) -> bytes:
    """The next byte, or none at the end: awake for a moment, then asleep."""
    give_up = time.perf_counter() + LISTEN_AWAKE_S
    while time.perf_counter() < give_up:
        try:
            return peer.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            # with more ranks than cores, the one waited for needs this core
            os.sched_yield()
    return peer.recv(1)
