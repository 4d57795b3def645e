"""DistributedDataParallel and what becomes of its buckets."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from minitrain.distributed.groups import wrap_for_ddp
from minitrain.sync.strategy import (
    BucketEvent,
    Strategy,
    Traffic,
    Tuning,
    broadcast,
    num_bytes,
    trained,
)

Reduced = torch.futures.Future[Tensor]
# nanoseconds of the last step; the averages beside them begin with the first step
LOGGED = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)


def _call(method: WeakMethod[Any], bucket: GradBucket) -> Reduced:
    # DDP keeps its hook where no collector of garbage sees it: a hook that kept the
    # strategy, which keeps DDP, would keep all of them for ever
    reduce = method()
    assert reduce is not None, "keep the strategy as long as its module"
    return reduce(bucket)


class StockDDP(Strategy):
    """DDP with torch's defaults.

    ``timed`` adds a communication hook that does what DDP does without one, to the
    bit (multiply by 1/W, then sum), and notes when each bucket was handed over and
    when it came back. The baseline stage shows what the hook costs. Without
    ``overlap`` buckets wait until the last one is there.
    """

    has_buckets: ClassVar[bool] = True
    # whether gradients live in the buckets, which spares copies in and out
    bucket_views: ClassVar[bool] = False
    # whether a bucket is reduced as soon as it is there, if ``overlap`` allows it
    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        tuning: Tuning,
        *,
        group: dist.ProcessGroup | None = None,
        timed: bool = True,
    ) -> None:
        super().__init__(model, tuning, group=group, timed=timed)
        self._ddp = wrap_for_ddp(
            model,
            group,
            bucket_cap_mb=tuning.bucket_cap_mb,
            find_unused_parameters=tuning.find_unused_parameters,
            gradient_as_bucket_view=self.bucket_views,
        )
        self.module = self._ddp
        self._names = {id(p): n for n, p in model.named_parameters()}
        self._factor = 1.0 / self.world_size
        # a silent pass would count as use of a parameter
        self.has_account = not tuning.find_unused_parameters
        self._late: list[tuple[GradBucket, BucketEvent, Reduced]] = []
        if self._needs_hook():
            self._ddp.register_comm_hook(WeakMethod(self._reduce), _call)

    @classmethod
    def only_watches(cls) -> bool:
        own = (cls.exchange, cls._needs_hook)
        return own == (StockDDP.exchange, StockDDP._needs_hook)

    def _needs_hook(self) -> bool:
        return self.timed or not self.tuning.overlap

    def exchange(self, bucket: GradBucket) -> Reduced:
        """Start the reduction of one bucket."""
        buffer = bucket.buffer().mul_(self._factor)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    @contextmanager
    def part(self, shard: int, is_last: bool) -> Iterator[None]:
        # those of a step that somebody gave up
        self._late.clear()
        if is_last:
            yield
        else:
            with self._ddp.no_sync():
                yield

    @contextmanager
    def silent(self) -> Iterator[None]:
        with self._ddp.no_sync():
            yield
        # else the next forward pass would not start from rank 0's buffers
        self._ddp.require_forward_param_sync = True

    def finish(self) -> None:
        """What DDP does before a forward pass: rank 0's buffers go to everybody."""
        broadcast(self.model.buffers(), self.group)

    def traffic(self) -> Traffic:
        return {
            "all_reduce": (
                len(self.trace.events),
                num_bytes(trained(self.model).values()),
            )
        }

    def logged(self) -> dict[str, float]:
        """DDP's own log of the last step; empty where this torch does not have it."""
        # on a GPU there is nothing to hold it against
        if not self.timed or self.trace.computed_ns is None:
            return {}
        ddp: Any = self._ddp
        try:
            # private to torch. Unasked, DDP logs ten steps, then every hundredth
            ddp._set_ddp_runtime_logging_sample_rate(1)
            # what the next forward pass would do: take the times of this step
            ddp.logger.set_runtime_stats_and_log()
            data = ddp._get_ddp_logging_data()
            forward, compute, comm, overlap = (data[key] / 1e6 for key in LOGGED)
        except (AttributeError, KeyError, TypeError, RuntimeError):
            return {}
        # torch's zero is a time that it did not take
        if not (forward and compute and comm):
            return {}
        return {
            "ddp_forward_ms": forward,
            "ddp_backward_ms": compute + comm - overlap,
            "ddp_backward_compute_ms": compute,
            "ddp_comm_ms": comm,
        }

    def _reduce(self, bucket: GradBucket) -> Reduced:
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
            self._start_late()
        return later

    def _start(self, bucket: GradBucket, event: BucketEvent) -> Reduced:
        on_gpu = bucket.buffer().is_cuda

        def reduced(future: Reduced) -> Tensor:
            event.done_ns = None if on_gpu else time.perf_counter_ns()
            return future.value()

        return self.exchange(bucket).then(reduced)

    def _start_late(self) -> None:
        late, self._late = self._late, []
        for bucket, event, later in late:
            event.called_ns = time.perf_counter_ns()
            later.set_result(self._start(bucket, event).wait())
