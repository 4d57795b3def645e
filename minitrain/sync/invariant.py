"""Invariant strategies: the same bits at any number of processes.

A global batch is cut into a fixed number of logical shards, whose gradients are added
in a fixed binary tree: first inside a process, then between processes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import group_timeout_s
from minitrain.comm.shared_memory import SharedMemoryGroup
from minitrain.comm.torch_private import add_all
from minitrain.comm.tree import tree_sum
from minitrain.sync.after_backward import Flat
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import (
    Traffic,
    broadcast,
    copy_buffers,
    load_buffers,
    num_bytes,
)


class Invariant(Flat):
    """Strategy that sums gradients of logical shards in a binary tree: lower levels in
    each process, upper levels by recursive doubling (Thakur et al. 2005).
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["invariant"]

    def begin(self) -> None:
        super().begin()
        self._shard: int | None = None
        self._sums: list[tuple[int, list[Tensor]]] = []
        self._start = copy_buffers(self.model)
        self._first: list[Tensor] = []

    def micro_step(self, shard: int, is_last: bool) -> AbstractContextManager[None]:
        if self._shard not in (None, shard):
            self._end_shard()
            # every shard starts from the buffers at the beginning of the step
            load_buffers(self.model, self._start)
        self._shard = shard
        return super().micro_step(shard, is_last)

    def _end_shard(self) -> None:
        if not self._first:
            self._first = copy_buffers(self.model)
        # add the gradients to all levels of the tree that are complete
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
        self._end_shard()
        ((_, sums),) = self._sums
        for parameter, gradient in zip(self._trained.values(), sums, strict=True):
            parameter.grad = gradient
        super().reduce()
        # keep the buffers of the first shard, the same at any number of processes
        load_buffers(self.model, self._first)
        broadcast(self.model.buffers(), self.group)

    def sum_over_ranks(self, flat: Tensor) -> None:
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
    """:class:`Invariant` for ranks of one host, which add in shared memory."""

    guarantees: ClassVar[Guarantees] = GUARANTEES["invariant_shm"]

    def set_up(self) -> None:
        super().set_up()
        limit = group_timeout_s()
        self._memory = SharedMemoryGroup(self.group, timeout_s=limit)

    def sum_over_ranks(self, flat: Tensor) -> None:
        self._memory.all_reduce(flat)

    def traffic(self) -> Traffic:
        return {}

    def close(self) -> None:
        self._memory.close()
