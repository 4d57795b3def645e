"""Collectives among the ranks of one host, in memory that all of them map.

Time runs in ticks that end with a barrier, and the memory has two slots. In one tick
ranks write only to one slot, each to its own row, and read only from the other, which
the tick before has filled; then the slots change roles. So no barrier is needed but
that one. A tensor passes through in pieces: the memory is small and stays in cache.
"""

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.sockets import meet
from minitrain.comm.tree import tree_sum

# what a rank writes in a tick; less means more barriers, more falls out of the cache
ROW_BYTES = 1 << 21
# up to here it is faster to add everything than to wait for the sums of others
SMALL_BYTES = 1 << 18
# every chunk starts where any type may
ALIGNMENT = 64


class SharedMemoryGroup:
    """The ranks of ``group`` (all of them when it is None), which share one host.

    ``among``: only those, as ``group`` numbers them; then it is a group of this rank's
    host. The constructor is collective, for all of ``group`` in any case; it raises
    UserError where the ranks are on several hosts. Whoever waits longer than
    ``timeout_s`` seconds for another rank gives up. Close it, or use it as a context;
    the memory goes with the last tensor in it.
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
        # views of it by type: to make them takes longer than to add a small tensor
        self._rows: dict[torch.dtype, list[list[Tensor]]] = {}
        self._writing = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of sockets and memory; a rank that still waits for this one fails."""
        self._slots = None
        self._rows.clear()
        self._links.close()

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by the sum over the ranks, in place. Collective.

        A CPU tensor without gaps, of any number type, the same shape and type on every
        rank. The bits are those of :func:`minitrain.comm.tree.tree_sum` over the
        ranks (a NaN is a NaN: which one it is may differ), the same on all of them.
        Tensors that differ in size or type between ranks give wrong sums, and no error.

        Raises RankError that names the rank that ended, left or was silent. After any
        error the group is closed.
        """
        self._together("all_reduce", tensor, self._add)

    def broadcast(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by that of the first rank, in place. Collective.

        It takes and raises what :meth:`all_reduce` does, and changes no bit.
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
            do(tensor.detach().view(-1), self._slots)
        except BaseException:
            # the others may be further, or wait: no way back into step
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
        """One barrier a piece; ``rows[slot][writer]`` are of shape (elements,)."""
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
                # the same numbers as in the slot, and in cache for the result's sake
                terms[self.rank] = sent
                tree_sum(terms, out=sent)
            if piece is not None:
                self._end_tick()
            sent = piece

    def _add_chunks(self, flat: Tensor, slots: Tensor) -> None:
        """Send each rank its chunk to add; ``slots``: (slot, writer, chunk, element).

        A piece takes three ticks, in which it is sent, added up and collected, each
        together with the pieces behind and ahead of it.
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
                # no rank sends to itself: the chunk's place is free for the sum
                mine[self.rank, : len(own)] = tree_sum(terms, out=own)
            for rank, chunk in enumerate(added):
                if rank != self.rank:
                    chunk.copy_(theirs[rank, rank, : len(chunk)])
            if piece or sent:
                self._end_tick()
            sent, added = piece, sent

    def _copy(self, flat: Tensor, slots: Tensor) -> None:
        """One barrier a piece, which the first rank writes and then the others read."""
        # of each slot the first rank's row, as in a sum of two
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
        self._links.barrier()
        self._writing = 1 - self._writing
