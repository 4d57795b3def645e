"""Links between the ranks of one host: sockets between all pairs and shared memory.

Neither has a name in the file system: nothing is left, even by kill -9. Linux only.
"""

import mmap
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch.distributed as dist

from minitrain.comm.collective_calls import everyone
from minitrain.core.errors import RankError, UserError

# message between ranks: the number of its sender, or of a rank that the sender lost,
# and a text that must be equal on all ranks
HEAD_BYTES, BRINGS_BYTES = 2, 62
WORD_BYTES = HEAD_BYTES + BRINGS_BYTES
# time to poll before sleeping, about the cost of falling asleep and being woken
LISTEN_AWAKE_S = 100e-6
CLOSED = "connection closed by peer"


class Seat(NamedTuple):
    """Contact data of a rank, sent to all other ranks: host, process id, address of the
    socket on which the rank accepts connections, and descriptor of its memory, if any.
    """

    host: tuple[str, ...]
    pid: int
    address: str
    memory: int | None


def hosts_of(group: dist.ProcessGroup | None = None) -> list[list[int]]:
    """Return a list of ranks (numbered as in ``group``) for each host, in the order of
    the hosts' first ranks. Collective.

    Ranks count as on one host, and can share memory, if they run on the same kernel in
    the same PID and network namespaces.
    """
    hosts: dict[tuple[str, ...], list[int]] = {}
    for rank, host in enumerate(everyone(_host, group)):
        hosts.setdefault(host, []).append(rank)
    return list(hosts.values())


def _host() -> tuple[str, ...]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]
    except OSError:
        # some sandboxes have neither
        return (socket.gethostname(),)
    return (boot, *spaces)


def meet(
    group: dist.ProcessGroup | None,
    memory_bytes: int,
    timeout_s: float,
    among: Sequence[int] | None = None,
) -> tuple["Links", mmap.mmap]:
    """Connect ranks of one host, map the same zeroed memory in each, and return the
    sockets and the memory. Collective.

    Args:
        group: Ranks that call this; None for all.
        memory_bytes: Size of the memory, which is freed with its last mapping.
        timeout_s: Limit in seconds of the connection, and then of each barrier.
        among: Ranks of ``group`` to connect, including this rank; None for all.

    Raises:
        UserError: The connected ranks are on several hosts, or memory is short.
        RankError: A rank, which the message names, exited or did not answer in time.
    """
    rank, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
    members = range(len(ranks)) if among is None else among
    names = [ranks[member] for member in members]
    links = Links(members.index(rank), names, timeout_s)
    # the leading zero makes it an abstract address, without a file
    address = f"\0minitrain-{secrets.token_hex(16)}"
    memory: int | None = None

    def take_seat() -> Seat:
        nonlocal memory
        if rank == members[0]:
            memory = _allocate(memory_bytes)
        return Seat(_host(), os.getpid(), address, memory)

    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(address)
            door.listen(len(names))
            found = everyone(take_seat, group)
            seats = [found[member] for member in members]
            _require_one_host(names, seats)
            links.connect(door, seats)
            # only this user can open it
            with open(f"/proc/{seats[0].pid}/fd/{seats[0].memory}", "r+b") as opened:
                mapped = mmap.mmap(opened.fileno(), memory_bytes)
            # the first rank closes its descriptor after that
            links.barrier()
            return links, mapped
    except BaseException:
        links.close()
        raise
    finally:
        if memory is not None:
            os.close(memory)


def _allocate(size: int) -> int:
    memory = os.memfd_create("minitrain")
    try:
        # reserve all of it: a later shortage would kill the rank that writes
        os.posix_fallocate(memory, 0, size)
    except OSError:
        os.close(memory)
        short = f"shared memory: this host has no {size / 2**20:.0f} MiB left"
        raise UserError(short) from None
    return memory


def _require_one_host(names: Sequence[int], seats: Sequence[Seat]) -> None:
    for name, seat in zip(names, seats, strict=True):
        if seat.host != seats[0].host:
            raise UserError(
                f"shared memory: rank {name} is on another host than rank {names[0]}, "
                "or in another container; all ranks must be on one"
            )


class Links:
    """Sockets from ``rank`` to all other ranks. ``names[r]``: global rank of rank r, in
    messages. :meth:`connect` and each barrier may take up to ``timeout_s`` seconds.
    """

    def __init__(self, rank: int, names: Sequence[int], timeout_s: float) -> None:
        self._rank = rank
        self._names = names
        self._timeout_s = timeout_s
        self._peers: dict[int, socket.socket] = {}
        self._heads = [rank.to_bytes(HEAD_BYTES, "big") for rank in range(len(names))]

    def connect(self, door: socket.socket, seats: Sequence[Seat]) -> None:
        """Connect to lower ranks, and accept connections of higher ranks at ``door``, a
        listening socket. ``seats``: contact data of each rank, in order. Raises
        RankError that names a rank if that rank exited or was not ready in time.
        """
        deadline = time.monotonic() + self._timeout_s
        for rank, seat in enumerate(seats[: self._rank]):
            line = self._peers[rank] = socket.socket(socket.AF_UNIX)
            try:
                # the backlog holds all ranks, so a refusal means that the rank ended
                line.setblocking(False)
                line.connect(seat.address)
                line.setblocking(True)
            except OSError:
                self._give_up(rank, CLOSED)
            if _process_behind(line) != seat.pid:
                self._give_up(rank, CLOSED)
        missing = {seats[r].pid: r for r in range(self._rank + 1, len(seats))}
        while missing:
            try:
                door.settimeout(_left_s(deadline))
                line, _ = door.accept()
            except TimeoutError:
                self._give_up(min(missing.values()), self._silence)
            # any process of this host can connect: ask the kernel for its id
            known = missing.pop(_process_behind(line), None)
            if known is None:
                line.close()
            else:
                self._peers[known] = line
        # all ranks of a barrier send and receive in the same order
        self._peers = dict(sorted(self._peers.items()))

    def barrier(self, brings: bytes = b"") -> None:
        """Wait until every rank has called this with the same ``brings``. Collective.

        Args:
            brings: Text of at most BRINGS_BYTES bytes, such as the next operation.

        Raises:
            RankError: A rank exited, closed its links, did not answer in time or passes
                another text. The error, raised on every rank, names that rank. The
                links are then closed.
        """
        brought = brings.ljust(BRINGS_BYTES)
        deadline = time.monotonic() + self._timeout_s
        for peer in self._peers.values():
            # a rank that ended may have sent its message before: received below
            with suppress(OSError):
                peer.send(self._heads[self._rank] + brought)
        for rank, peer in self._peers.items():
            try:
                received = _listen(peer, deadline)
            except TimeoutError:
                self._give_up(rank, self._silence)
            except ConnectionError:
                received = b""
            if not received:
                self._give_up(rank, CLOSED)
            lost = self._heads.index(received[:HEAD_BYTES])
            if lost != rank:
                self._give_up(lost, f"says rank {self._names[rank]}")
            if received[HEAD_BYTES:] != brought:
                # the others have the message of this rank, and see it themselves
                self.close()
                raise RankError(
                    f"rank {self._names[rank]} brings "
                    f"{received[HEAD_BYTES:].decode().strip()}, and rank "
                    f"{self._names[self._rank]} {brings.decode()}: must be the same on "
                    "every rank"
                )

    def close(self) -> None:
        """Close the sockets: ranks that wait for this rank then fail immediately."""
        for peer in self._peers.values():
            peer.close()

    @property
    def _silence(self) -> str:
        return f"no answer within {self._timeout_s:g} s"

    def _give_up(self, lost: int, why: str) -> NoReturn:
        # else the others would report this rank, which exits now, as the lost one
        for peer in self._peers.values():
            with suppress(OSError):
                peer.send(self._heads[lost] + bytes(BRINGS_BYTES))
        self.close()
        raise RankError(f"rank {self._names[lost]} is lost: {why}")


def _process_behind(line: socket.socket) -> int:
    # from the kernel, so it cannot be forged
    who = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("@iII", who)[0])


def _left_s(deadline: float) -> float:
    # a timeout of 0 would make the socket non-blocking
    return max(1e-6, deadline - time.monotonic())


def _listen(peer: socket.socket, deadline: float) -> bytes:
    # spin for a moment, then sleep; empty if the connection was closed
    give_up = time.perf_counter() + LISTEN_AWAKE_S
    while time.perf_counter() < give_up:
        try:
            return peer.recv(WORD_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            # with more ranks than cores, the other rank may need this one
            os.sched_yield()
    # unlike a timeout of the kernel, Python's is not restarted by signals
    peer.settimeout(_left_s(deadline))
    try:
        return peer.recv(WORD_BYTES)
    finally:
        peer.settimeout(None)
