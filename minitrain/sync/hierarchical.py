"""DDP with buckets reduced in shared memory, on one host or inside each host."""

import secrets
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import group_timeout_s
from minitrain.comm.ring import ring_sum
from minitrain.comm.shared_memory import SharedMemoryGroup
from minitrain.comm.sockets import hosts_of
from minitrain.comm.torch_private import GradBucket, group_by
from minitrain.comm.tree import tree_sum
from minitrain.sync.ddp_buckets import Reduced, StockDDP
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import Traffic


class SharedMemory(StockDDP):
    """DDP with an all-reduce through shared memory, which is faster than gloo's sockets
    and needs no thread. With two ranks its bits equal stock DDP's; with more ranks the
    gradients are added in a tree instead of a ring.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["shm"]
    bucket_views: ClassVar[bool] = True
    # the rank's only thread adds, so overlap hides nothing: wait once per step instead
    overlaps: ClassVar[bool] = False

    # the ranks of this host, if not all of the group
    _near: Sequence[int] | None = None

    def set_up(self) -> None:
        limit = group_timeout_s()
        self._memory = SharedMemoryGroup(self.group, among=self._near, timeout_s=limit)
        super().set_up()

    def sum_over_ranks(self, bucket: GradBucket) -> Reduced:
        buffer = bucket.buffer().mul_(self.factor)
        self._memory.all_reduce(buffer)
        done: Reduced = torch.futures.Future()
        done.set_result(buffer)
        return done

    def traffic(self) -> Traffic:
        return {}

    def close(self) -> None:
        self._memory.close()

    @staticmethod
    def reference(gradients: Sequence[Tensor]) -> Tensor:
        return tree_sum(gradients)


class Hierarchical(SharedMemory):
    """DDP with shared memory inside hosts and gloo between hosts: buckets are reduced
    inside each host, then among the hosts' first ranks (leaders), then broadcast inside
    each host. On one host the bits equal ``shm``, with one rank per host ``ddp``.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["hierarchical"]
    overlaps: ClassVar[bool] = True

    def set_up(self) -> None:
        hosts = self.trace.hosts = hosts_of(self.group)
        (self._near,) = (host for host in hosts if self.rank in host)
        self._crosses_hosts = len(hosts) > 1
        # None except on the leaders of several hosts
        self._leaders: dist.ProcessGroup | None = None
        # buckets of this step that the leader has yet to broadcast inside its host
        self._under_way: list[tuple[Tensor, Reduced]] = []
        if self._crosses_hosts:
            names = [f"leaders-{secrets.token_hex(16)}"]
            dist.broadcast_object_list(names, group=self.group, group_src=0)
            if self.rank == self._near[0]:
                ranks = dist.get_process_group_ranks(self.group)
                leaders = [ranks[host[0]] for host in hosts]
                self._leaders = group_by(leaders, names[0], group_timeout_s())
        super().set_up()

    def sum_over_ranks(self, bucket: GradBucket) -> Reduced:
        reduced = super().sum_over_ranks(bucket)
        if not self._crosses_hosts:
            return reduced
        buffer = bucket.buffer()
        if self._leaders is None:
            reduced = torch.futures.Future()
        else:
            work = dist.all_reduce(buffer, group=self._leaders, async_op=True)
            reduced = work.get_future().then(lambda future: future.value()[0])
        self._under_way.append((buffer, reduced))
        # other ranks cannot see when their leader is done, so all ranks of a host wait
        # for the network together, when nothing is left to compute
        if bucket.is_last() or not self.tuning.overlap:
            self._hand_back()
        return reduced

    def _hand_back(self) -> None:
        for buffer, reduced in self._under_way:
            if self._leaders is not None:
                reduced.wait()
            self._memory.broadcast(buffer)
            if self._leaders is None:
                reduced.set_result(buffer)
        self._under_way.clear()

    def traffic(self) -> Traffic:
        return {} if self._leaders is None else StockDDP.traffic(self)

    def close(self) -> None:
        super().close()
        if self._leaders is not None:
            dist.destroy_process_group(self._leaders)
            self._leaders = None

    @staticmethod
    def reference(
        gradients: Sequence[Tensor], hosts: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        where = hosts or [range(len(gradients))]
        return ring_sum([tree_sum([gradients[r] for r in host]) for host in where])
