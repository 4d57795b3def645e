"""Collectives among the ranks of one host, in shared memory.

Time runs in ticks that end with a barrier, and the memory has two slots. In one tick
ranks write only to one slot, each to its own row, and read only from the other, which
was filled in the tick before; then the slots change roles. So one barrier per tick is
enough. A tensor passes through in pieces, so the memory is small and stays in cache.
"""

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.sockets import meet
from minitrain.comm.tree import tree_sum

# a rank writes this much per tick: less needs more barriers, more exceeds the cache
ROW_BYTES = 1 << 21
# up to this size adding all rows is faster than waiting for the sums of others
SMALL_BYTES = 1 << 18
# every chunk starts at a multiple of it, enough for all types
ALIGNMENT = 64


class SharedMemoryGroup:
    """Group of ranks on one host, with collectives in shared memory. Call :meth:`close`
    at the end, or use the group as a context manager.

    The constructor is collective over ``group``. It raises UserError if the ranks are
    on several hosts.

    Args:
        group: Ranks that call the constructor; None for all.
        among: Ranks of ``group`` that form the new group; None for all.
        timeout_s: Limit in seconds of every wait for another rank.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        among: Sequence[int] | None = None,
        timeout_s: float = 120,
    ) -> None:
        members = range(dist.get_world_size(group)) if among is None else among
        self.rank = members.index(dist.get_rank(group))
        self.world_size = world_size = len(members)
        chunk = ROW_BYTES // world_size // ALIGNMENT * ALIGNMENT
        # (slot, writer, chunk, byte): a row has one chunk for each rank
        shape = (2, world_size, world_size, chunk)
        self._links, memory = meet(group, math.prod(shape), timeout_s, members)
        # torch keeps the mapping alive as long as there is a view of it
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots: Tensor | None = flat.view(shape)
        # cached views by type: creating one takes longer than adding a small tensor
        self._rows: dict[torch.dtype, list[list[Tensor]]] = {}
        self._writing = 0
        self._brings = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release sockets and memory; ranks that wait for this rank fail."""
        self._slots = None
        self._rows.clear()
        self._links.close()

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by the sum over the ranks, in place. Collective.

        The bits equal :func:`minitrain.comm.tree.tree_sum` on all ranks, except
        that the payload of a NaN may differ.

        Args:
            tensor: A dense CPU tensor of numbers, of equal size and type on all ranks.

        Raises:
            RankError: A rank, which the message names, exited, did not answer, or has a
                tensor of another size or type. After any error the group is closed.
            ValueError: The group is closed.
        """
        self._together("all_reduce", tensor, self._add)

    def broadcast(self, tensor: Tensor) -> None:
        """Copy ``tensor`` of the group's first rank into ``tensor`` of the other ranks.
        Collective. Arguments and errors are the same as for :meth:`all_reduce`.
        """
        self._together("broadcast", tensor, self._copy)

    def _together(
        self, name: str, tensor: Tensor, do: Callable[[Tensor, Tensor], None]
    ) -> None:
        if self._slots is None:
            raise ValueError(f"{name}: the SharedMemoryGroup is closed")
        if self.world_size == 1:
            return
        try:
            flat = tensor.detach().view(-1)
            self._brings = f"{name} of {len(flat)} {flat.dtype}".encode()
            do(flat, self._slots)
        except BaseException:
            # the ranks are no longer in step
            self.close()
            raise

    def _add(self, flat: Tensor, slots: Tensor) -> None:
        if self.world_size > 2 and flat.nbytes > SMALL_BYTES:
            self._add_chunks(flat, slots.view(flat.dtype))
            return
        if flat.dtype not in self._rows:
            rows = slots.view(flat.dtype).flatten(2)
            self._rows[flat.dtype] = [list(slot) for slot in rows]
        self._add_all(flat, self._rows[flat.dtype])

    def _add_all(self, flat: Tensor, rows: list[list[Tensor]]) -> None:
        """Add all rows on each rank; ``rows[slot][writer]`` is one rank's row (n,)."""
        length = len(rows[0][0])
        sent: Tensor | None = None
        pieces = flat.split(length) if len(flat) > length else [flat]
        for piece in (*pieces, None):
            mine = rows[self._writing][self.rank]
            theirs = rows[1 - self._writing]
            if piece is not None:
                mine[: len(piece)].copy_(piece)
            if sent is not None:
                terms = [row[: len(sent)] for row in theirs]
                # equal to the row in the slot, and in cache, where the result goes
                terms[self.rank] = sent
                tree_sum(terms, out=sent)
            if piece is not None:
                self._end_tick()
            sent = piece

    def _add_chunks(self, flat: Tensor, slots: Tensor) -> None:
        """All-reduce in which each rank adds one chunk; ``slots``: (slot, writer,
        chunk, n). A piece takes three ticks: all ranks send its chunks, add theirs and
        collect the sums. Three successive pieces are processed at a time.
        """
        ranks = range(self.world_size)
        sent: Sequence[Tensor] = ()
        added: Sequence[Tensor] = ()
        pieces = flat.split(slots.shape[-1] * self.world_size)
        chunked = [piece.tensor_split(self.world_size) for piece in pieces]
        for piece in (*chunked, (), ()):
            mine = slots[self._writing, self.rank]
            theirs = slots[1 - self._writing]
            for rank, chunk in enumerate(piece):
                if rank != self.rank:
                    mine[rank, : len(chunk)] = chunk
            if sent:
                own = sent[self.rank]
                terms = [theirs[rank, self.rank, : len(own)] for rank in ranks]
                terms[self.rank] = own
                # no rank sends to itself, so its own chunk's place is free for the sum
                mine[self.rank, : len(own)] = tree_sum(terms, out=own)
            for rank, chunk in enumerate(added):
                if rank != self.rank:
                    chunk.copy_(theirs[rank, rank, : len(chunk)])
            if piece or sent:
                self._end_tick()
            sent, added = piece, sent

    def _copy(self, flat: Tensor, slots: Tensor) -> None:
        """Broadcast ``flat`` of the first rank, with one barrier per piece."""
        # the first rank's row in each slot
        rows = slots.view(flat.dtype)[:, 0].flatten(1)
        sent: Tensor | None = None
        for piece in (*flat.split(rows.shape[1]), None):
            if sent is not None and self.rank > 0:
                sent.copy_(rows[1 - self._writing, : len(sent)])
            if piece is not None:
                if self.rank == 0:
                    rows[self._writing, : len(piece)] = piece
                self._end_tick()
            sent = piece

    def _end_tick(self) -> None:
        self._links.barrier(self._brings)
        self._writing = 1 - self._writing
