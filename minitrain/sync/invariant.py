"""The same bits from any number of processes: a sum whose order none of them decides.

A global batch is cut into a fixed number of logical shards. Each has a gradient of its
own, and these are added up in a fixed binary tree: first inside a process, then between
processes, which only decide who computes which branch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.core.errors import UserError
from minitrain.distributed.shared_memory import SharedMemoryGroup
from minitrain.distributed.tree import tree_sum
from minitrain.sync.explicit import Flat
from minitrain.sync.strategy import Traffic, Tuning, broadcast, num_bytes, timeout_s


class Invariant(Flat):
    """Logical shards in a binary tree, its upper levels exchanged between processes.

    At each level a rank swaps its partial sum with the rank half the distance away
    (recursive doubling): adding two numbers has one result, whoever adds them.
    """

    averages: ClassVar[bool] = False
    own_buffers: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        tuning: Tuning,
        *,
        group: dist.ProcessGroup | None = None,
        timed: bool = True,
    ) -> None:
        super().__init__(model, tuning, group=group, timed=timed)
        self._rank = dist.get_rank(group) if dist.is_initialized() else 0
        self._shard: int | None
        self._num_parts: int
        self._pairs: bool
        # how often each gradient that waits for the next shard's was changed in place
        self._versions: dict[str, int]
        self._sums: list[tuple[int, list[Tensor]]]
        self._start: list[Tensor] = []
        self._first: list[Tensor]
        self._forget()

    @classmethod
    def num_shards(cls, world_size: int, tuning: Tuning) -> int:
        return tuning.logical_shards

    @classmethod
    def require(cls, tuning: Tuning, world_size: int, precision: str) -> None:
        super().require(tuning, world_size, precision)
        shards = tuning.logical_shards
        if shards & (shards - 1):
            raise UserError(f"train.logical_shards = {shards}: must be a power of two")
        if shards % world_size:
            raise UserError(
                f"train.logical_shards = {shards}: must be a multiple of the world "
                f"size, which is {world_size}"
            )

    @contextmanager
    def part(self, shard: int, is_last: bool) -> Iterator[None]:
        try:
            self._begin(shard)
            yield
        except BaseException:
            self._forget()
            raise

    def _begin(self, shard: int) -> None:
        if self._shard is None:
            self._start = [buffer.clone() for buffer in self._buffers]
        elif self._shard != shard:
            self._end_shard()
            if not self._sums and not self._versions:
                self._pairs = self._num_parts == 1 and self._accumulates_once()
            if self._pairs and not self._versions:
                grads = {name: self._gradient(name) for name in self._trained}
                self._versions = {name: grad._version for name, grad in grads.items()}
            else:
                self._climb()
            self._load(self._start)
            self._num_parts = 0
        self._shard = shard
        self._num_parts += 1

    def _accumulates_once(self) -> bool:
        """Whether autograd may add the next shard's gradients to those of this one: the
        lowest sums of the tree, made while they are in cache. Not where a gradient is a
        sum already (a layer run again by a checkpoint), or what a hook made of it.
        """
        return not any(
            self._gradient(name)._version or parameter._post_accumulate_grad_hooks
            for name, parameter in self._trained.items()
        )

    def _end_shard(self) -> None:
        if not self._first:
            self._first = [buffer.clone() for buffer in self._buffers]
        # a gradient to which the second of a pair added nothing is missing there
        for name, before in self._versions.items():
            if self._gradient(name)._version == before:
                self._refuse(name)

    def _forget(self) -> None:
        """Nothing of a step that is over, or that somebody gave up."""
        self._shard, self._num_parts, self._pairs = None, 0, False
        self._versions, self._sums, self._first = {}, [], []

    def _climb(self) -> None:
        """Add the gradients to the tree, as far as it is full."""
        level, sums = 0, []
        for name, parameter in self._trained.items():
            sums.append(self._gradient(name))
            parameter.grad = None
        while self._sums and self._sums[-1][0] == level:
            _, before = self._sums.pop()
            torch._foreach_add_(before, sums)
            level, sums = level + 1, before
        self._sums.append((level, sums))
        self._versions = {}

    def reduce(self) -> None:
        try:
            self._end_shard()
            self._climb()
            ((_, sums),) = self._sums
            for parameter, gradient in zip(self._trained.values(), sums, strict=True):
                parameter.grad = gradient
            super().reduce()
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
            peer = self._rank ^ distance
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

    on_one_host: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        tuning: Tuning,
        *,
        group: dist.ProcessGroup | None = None,
        timed: bool = True,
    ) -> None:
        super().__init__(model, tuning, group=group, timed=timed)
        self._memory = SharedMemoryGroup(group, timeout_s=timeout_s(group))

    def exchange(self, flat: Tensor) -> None:
        self._memory.all_reduce(flat)

    def traffic(self) -> Traffic:
        return {}

    def close(self) -> None:
        self._memory.close()


def shards_of(rank: int, world_size: int, num_shards: int) -> list[int]:
    """The logical shards that ``rank`` computes, so ordered that neighbours are added
    first: with 8 shards, rank 0 of 2 computes 0, 4, 2, 6.

    Shard s lies where ``s % world_size`` says, as samples do.
    """
    order, step = [rank], world_size
    while step < num_shards:
        order = [shard for first in order for shard in (first, first + step)]
        step *= 2
    return order
