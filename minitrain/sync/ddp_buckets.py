"""DistributedDataParallel with timed buckets; the base of strategies that use it."""

import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import wrap_for_ddp
from minitrain.comm.torch_private import GradBucket, ddp_times_ns
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import (
    BucketEvent,
    Strategy,
    Traffic,
    broadcast,
    num_bytes,
    trained,
)

Reduced = torch.futures.Future[Tensor]


class StockDDP(Strategy):
    """DDP with torch's defaults (Li et al. 2020, arXiv:2006.15704).

    ``timed`` adds a communication hook, which does not change bits and records when
    each bucket was complete and when it was reduced. If ``tuning.overlap`` is False, no
    bucket is reduced before the last one is complete. Subclasses override
    :meth:`sum_over_ranks` to sum in another way.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["ddp"]
    # True if gradients live in the buckets, which saves copies
    bucket_views: ClassVar[bool] = False
    # True if a bucket is reduced as soon as it is complete, if ``overlap`` allows it
    overlaps: ClassVar[bool] = True

    def set_up(self) -> None:
        self.ddp = wrap_for_ddp(
            self.model,
            self.group,
            bucket_cap_mb=self.tuning.bucket_cap_mb,
            find_unused_parameters=self.tuning.find_unused_parameters,
            gradient_as_bucket_view=self.bucket_views,
        )
        self.module = self.ddp
        self._names = {id(p): n for n, p in self.model.named_parameters()}
        # a bucket is multiplied by this before it is summed
        self.factor = 1.0 / self.world_size
        # then a pass without communication would mark parameters as used
        self.has_account = not self.tuning.find_unused_parameters
        self._late: list[tuple[GradBucket, BucketEvent, Reduced]] = []
        if self.timed or not (self.tuning.overlap and self.is_stock()):
            # The garbage collector cannot see DDP's hook: one that refers to the
            # strategy, which refers to DDP, would keep both alive forever.
            alive = weakref.proxy(self)
            self.ddp.register_comm_hook(
                alive, lambda sync, bucket: sync.on_bucket(bucket)
            )

    @classmethod
    def is_stock(cls) -> bool:
        """Return True if torch without a hook sums as :meth:`sum_over_ranks` does."""
        return cls.sum_over_ranks is StockDDP.sum_over_ranks

    def sum_over_ranks(self, bucket: GradBucket) -> Reduced:
        """Hook: start to reduce ``bucket``, and return a future of the result (n,)."""
        buffer = bucket.buffer().mul_(self.factor)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def begin(self) -> None:
        super().begin()
        self._late.clear()

    def micro_step(self, shard: int, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last else self.ddp.no_sync()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        with self.ddp.no_sync():
            yield
        # else the next forward pass would not broadcast rank 0's buffers
        self.ddp.require_forward_param_sync = True

    def finish(self) -> None:
        # like DDP before a forward pass
        broadcast(self.model.buffers(), self.group)

    def traffic(self) -> Traffic:
        size = num_bytes(trained(self.model).values())
        return {"all_reduce": (len(self.trace.events), size)}

    def logged(self) -> dict[str, float]:
        # on a GPU there are no times to compare with
        is_timed = self.timed and self.trace.computed_ns is not None
        times = ddp_times_ns(self.ddp) if is_timed else None
        # torch reports 0 for a time that it did not measure
        if times is None or not all(times[:3]):
            return {}
        forward, compute, comm, overlap = (time_ns / 1e6 for time_ns in times)
        return {
            "ddp_forward_ms": forward,
            "ddp_backward_ms": compute + comm - overlap,
            "ddp_backward_compute_ms": compute,
            "ddp_comm_ms": comm,
        }

    def on_bucket(self, bucket: GradBucket) -> Reduced:
        """Communication hook: DDP calls it as soon as ``bucket`` is complete. Returns a
        future, whose value DDP copies into the gradients at the end of backward.
        """
        buffer = bucket.buffer()
        now = None if buffer.is_cuda else time.perf_counter_ns()
        names = tuple(self._names[id(p)] for p in bucket.parameters())
        event = BucketEvent(names, buffer.nbytes, now)
        self.trace.events.append(event)
        if bucket.is_last():
            self.trace.computed_ns = now
        if self.overlaps and self.tuning.overlap:
            return self._start(bucket, event)
        later: Reduced = torch.futures.Future()
        self._late.append((bucket, event, later))
        if bucket.is_last():
            late, self._late = self._late, []
            for one, its_event, reduced in late:
                its_event.called_ns = time.perf_counter_ns()
                reduced.set_result(self._start(one, its_event).wait())
        return later

    def _start(self, bucket: GradBucket, event: BucketEvent) -> Reduced:
        on_gpu = bucket.buffer().is_cuda

        def reduced(future: Reduced) -> Tensor:
            event.done_ns = None if on_gpu else time.perf_counter_ns()
            return future.value()

        return self.sum_over_ranks(bucket).then(reduced)
