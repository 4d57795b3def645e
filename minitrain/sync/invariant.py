"""The same bits from any number of processes: a sum whose order none of them decides.

A global batch is cut into a fixed number of logical shards, whose gradients are added
up in a fixed binary tree: first inside a process, then between processes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.shared_memory import SharedMemoryGroup
from minitrain.comm.torch_private import add_all, group_timeout_s
from minitrain.comm.tree import tree_sum
from minitrain.sync.explicit import Flat
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import Traffic, broadcast, num_bytes


class Invariant(Flat):
    """Logical shards in a binary tree, its upper levels exchanged between processes by
    recursive doubling (Thakur et al. 2005).
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["invariant"]

    def set_up(self) -> None:
        super().set_up()
        self._forget()

    def _forget(self) -> None:
        # nothing of a step that is over, or that was given up
        self._shard: int | None = None
        self._sums: list[tuple[int, list[Tensor]]] = []
        self._start: list[Tensor] = []
        self._first: list[Tensor] = []

    @contextmanager
    def micro_step(self, shard: int, is_last: bool) -> Iterator[None]:
        try:
            if self._shard is None:
                self._start = [buffer.clone() for buffer in self._buffers]
            elif self._shard != shard:
                self._end_shard()
                # every shard starts from the buffers with which the step began
                self._load(self._start)
            self._shard = shard
            yield
        except BaseException:
            self._forget()
            raise

    def _end_shard(self) -> None:
        if not self._first:
            self._first = [buffer.clone() for buffer in self._buffers]
        # add the gradients to the tree, as far as it is full
        level, sums = 0, []
        for name, parameter in self._trained.items():
            sums.append(self._gradient(name))
            parameter.grad = None
        while self._sums and self._sums[-1][0] == level:
            _, before = self._sums.pop()
            add_all(before, sums)
            level, sums = level + 1, before
        self._sums.append((level, sums))

    def reduce(self) -> None:
        try:
            self._end_shard()
            ((_, sums),) = self._sums
            for parameter, gradient in zip(self._trained.values(), sums, strict=True):
                parameter.grad = gradient
            super().reduce()
            # of all shards, the first decides: the same one in any number of processes
            self._load(self._first)
            broadcast(self._buffers, self.group)
        finally:
            self._forget()

    def _load(self, saved: list[Tensor]) -> None:
        for buffer, copy in zip(self._buffers, saved, strict=True):
            buffer.detach().copy_(copy)

    def exchange(self, flat: Tensor) -> None:
        theirs = torch.empty_like(flat)
        distance = self.world_size // 2
        while distance:
            peer = self.rank ^ distance
            swap = [
                dist.P2POp(dist.isend, flat, group=self.group, group_peer=peer),
                dist.P2POp(dist.irecv, theirs, group=self.group, group_peer=peer),
            ]
            for work in dist.batch_isend_irecv(swap):
                work.wait()
            flat.add_(theirs)
            distance //= 2

    def traffic(self) -> Traffic:
        levels = self.world_size.bit_length() - 1
        size = levels * num_bytes(self._trained.values())
        return {"send": (levels, size), "receive": (levels, size)} if levels else {}

    @staticmethod
    def reference(gradients: Sequence[Tensor]) -> Tensor:
        return tree_sum(gradients)


class InvariantSharedMemory(Invariant):
    """The same tree, its upper levels in memory that the processes of a host share."""

    guarantees: ClassVar[Guarantees] = GUARANTEES["invariant_shm"]

    def set_up(self) -> None:
        super().set_up()
        limit = group_timeout_s(self.group)
        self._memory = SharedMemoryGroup(self.group, timeout_s=limit)

    def exchange(self, flat: Tensor) -> None:
        self._memory.all_reduce(flat)

    def traffic(self) -> Traffic:
        return {}

    def close(self) -> None:
        self._memory.close()
