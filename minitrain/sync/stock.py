"""Stock DistributedDataParallel, watched or not, and no synchronisation at all."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from minitrain.ddp import unwrap, wrap_for_ddp
from minitrain.sync import BucketEvent, SyncTrace


class StockDDP:
    """DDP with torch's defaults.

    ``timed`` adds a communication hook that does what DDP does without one, to the
    bit (multiply by 1/W, then sum), and notes when each bucket was handed over and
    when it came back. The baseline stage shows what the hook costs.
    """

    def __init__(
        self, model: nn.Module, *, timed: bool, group: dist.ProcessGroup | None = None
    ) -> None:
        self._ddp = wrap_for_ddp(model, group)
        self._group = group
        self.module: nn.Module = self._ddp
        self.trace = SyncTrace()
        if timed:
            self._names = {id(p): n for n, p in unwrap(model).named_parameters()}
            self._factor = 1.0 / dist.get_world_size(group)
            self._ddp.register_comm_hook(None, self._reduce)

    @contextmanager
    def silent(self) -> Iterator[None]:
        with self._ddp.no_sync():
            yield
        # else the next forward pass would not start from rank 0's buffers
        self._ddp.require_forward_param_sync = True

    def finish(self) -> None:
        """What DDP does before a forward pass: rank 0's buffers go to everybody."""
        for buffer in unwrap(self._ddp).buffers():
            dist.broadcast(buffer, group=self._group, group_src=0)

    def _reduce(self, _: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        called = None if buffer.is_cuda else time.perf_counter_ns()
        names = tuple(self._names[id(p)] for p in bucket.parameters())
        event = BucketEvent(names, buffer.nbytes, bucket.is_last(), called)
        self.trace.events.append(event)
        work = dist.all_reduce(
            buffer.mul_(self._factor), group=self._group, async_op=True
        )

        def reduced(future: torch.futures.Future[Any]) -> Tensor:
            event.done_ns = None if buffer.is_cuda else time.perf_counter_ns()
            return future.value()[0]

        return work.get_future().then(reduced)


class NoSync:
    """The plain module: each process trains alone, which is right for one process.

    With several it is the ceiling that synchronisation can at best reach.
    """

    def __init__(self, model: nn.Module) -> None:
        self.module = model
        self.trace = SyncTrace()

    def silent(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self) -> None:
        """Nobody to agree with."""
