"""Data-parallel bugs, each injected in a rank without changing the code under
test.

An injection is called in every rank before its first step and modifies its worker at
one of these points: ``batches`` (data and loss), ``weighted`` (targets of a loss),
``optimizer``, ``sync`` (the strategy), ``sync.module`` (the module called),
``sync.factor`` and ``sync.on_bucket`` (DDP's handling of a bucket). ``BUGS`` lists the
source of each bug, the check that must catch it, and the locator's cause.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import unwrap
from minitrain.comm.torch_private import GradBucket
from minitrain.data.batches import MicroBatch
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.train.run import Inject
from minitrain.train.worker import Worker

# step at or from which a bug is active, if not the first
LATER = 3
STEPS_PER_EPOCH = 4
VICTIM = 1


@dataclass(frozen=True)
class Bug:
    """Bug that ``check`` catches at ``step``; the locator's cause contains ``cause``
    (empty if no result changes). ``last_step`` is the last step before the bug raises
    an error.
    """

    inject: Inject
    met_in: str
    check: str
    step: int
    cause: str
    model: str = "plain"
    last_step: int | None = None

    @property
    def name(self) -> str:
        """Name of the injection."""
        return self.inject.__name__

    def steps(self, wanted: int) -> int:
        """Return ``wanted``, or the number of steps before an error."""
        return wanted if self.last_step is None else self.last_step + 1


def wrapper_bypassed(worker: Worker) -> None:
    """Compute the loss with the plain module, bypassing DDP."""
    worker.sync.module = unwrap(worker.sync.module)


def sum_for_mean(worker: Worker) -> None:
    """Sum gradients over ranks without dividing."""
    _stock(worker).factor = 1.0


def scaled_loss(worker: Worker) -> None:
    """Multiply the loss by a constant."""
    right = worker.batches.loss

    def loss(model: torch.nn.Module, inputs: Any) -> Tensor:
        return right(model, inputs) * 8

    _set(worker.batches, loss=loss)


def learning_rate_divided(worker: Worker) -> None:
    """Divide the learning rate by the number of processes."""
    for group in worker.optimizer.param_groups:
        group["lr"] /= worker.world_size


def mean_of_means(worker: Worker) -> None:
    """Weight the means of all ranks equally, regardless of their targets."""
    _set(worker, weighted=lambda loss, micro_batch: loss)


def group_of_one(worker: Worker) -> None:
    """Reduce on each rank in a group of size one."""
    groups = [dist.new_group([rank]) for rank in range(worker.world_size)]
    tuning = worker.sync.tuning
    worker.sync = StockDDP(worker.model, tuning, group=groups[worker.rank])


def missing_broadcast(worker: Worker) -> None:
    """Start one rank from different weights."""
    if worker.rank == VICTIM:
        with torch.no_grad():
            for parameter in worker.model.parameters():
                parameter.normal_(std=0.02)


def buffers_not_synchronized(worker: Worker) -> None:
    """Skip the broadcast of rank 0's buffers before the forward pass."""
    _stock(worker).ddp.broadcast_buffers = False


def optimizer_state_not_restored(worker: Worker) -> None:
    """Resume with a new optimizer."""

    def clear(step: int, batch: MicroBatch) -> MicroBatch:
        if step == LATER:
            worker.optimizer.state.clear()
        return batch

    _change_batches(worker, clear)


def duplicate_samples(worker: Worker) -> None:
    """Pad with duplicate samples."""

    def double(step: int, batch: MicroBatch) -> MicroBatch:
        if worker.rank != VICTIM or len(batch.digests) < 2:
            return batch
        inputs = {name: tensor.clone() for name, tensor in batch.inputs.items()}
        for tensor in inputs.values():
            tensor[0] = tensor[1]
        digests = (batch.digests[1], *batch.digests[1:])
        return replace(batch, inputs=inputs, digests=digests)

    _change_batches(worker, double)


def missing_set_epoch(worker: Worker) -> None:
    """Repeat the order of the first epoch in every epoch."""
    _read_another_step(worker, lambda step: step % STEPS_PER_EPOCH)


def redundant_sync(worker: Worker) -> None:
    """Average gradients that are already averaged."""
    sync = _stock(worker)
    reduce = sync.on_bucket

    def twice(bucket: GradBucket) -> torch.futures.Future[Tensor]:
        def again(future: torch.futures.Future[Any]) -> Tensor:
            bucket.buffer().copy_(future.value())
            return reduce(bucket).wait()

        return reduce(bucket).then(again)

    _set(sync, on_bucket=twice)


def missing_last_sync(worker: Worker) -> None:
    """Skip synchronization in the last step of an accumulation."""

    def skip(step: int, batch: MicroBatch) -> MicroBatch:
        _stock(worker).ddp.require_backward_grad_sync = step != LATER
        return batch

    _change_batches(worker, skip)


def mismatched_bucket_order(worker: Worker) -> None:
    """Fill the bucket of one rank in a different order."""
    sync = _stock(worker)
    reduce = sync.on_bucket

    def flipped(bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if worker.rank == VICTIM:
            bucket.buffer().copy_(bucket.buffer().flip(0))
        done = reduce(bucket)
        if worker.rank == VICTIM:
            return done.then(lambda future: future.value().flip(0))
        return done

    _set(sync, on_bucket=flipped)


def another_data_seed(worker: Worker) -> None:
    """Shuffle one rank with a different seed."""
    if worker.rank == VICTIM:
        _read_another_step(worker, lambda step: step + 1)


def unused_parameter(worker: Worker) -> None:
    """Leave a parameter without gradient, so that only step 0 succeeds."""


def low_precision_reduce(worker: Worker) -> None:
    """Reduce gradients in bfloat16."""
    sync = _stock(worker)
    reduce = sync.on_bucket

    def compressed(bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        buffer.copy_(buffer.bfloat16())
        return reduce(bucket).then(
            lambda future: future.value().bfloat16().to(buffer.dtype)
        )

    _set(sync, on_bucket=compressed)


def _stock(worker: Worker) -> StockDDP:
    assert isinstance(worker.sync, StockDDP)
    return worker.sync


def _set(thing: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(thing, name, value)


def _read_another_step(worker: Worker, other: Callable[[int], int]) -> None:
    whole = worker.batches.micro_batches

    def micro_batches(step: int) -> list[MicroBatch]:
        return [replace(part, step=step) for part in whole(other(step))]

    _set(worker.batches, micro_batches=micro_batches)


def _change_batches(
    worker: Worker, change: Callable[[int, MicroBatch], MicroBatch]
) -> None:
    whole = worker.batches.micro_batches
    _set(
        worker.batches,
        micro_batches=lambda step: [change(step, p) for p in whole(step)],
    )


ALONE = "keep their own gradients"
BUGS = [
    Bug(wrapper_bypassed, "OpenTSLM #49", "reduced_once", 0, ALONE),
    Bug(group_of_one, "verl #7493", "ranks", 0, ALONE),
    Bug(missing_last_sync, "documented trap of no_sync", "ranks", LATER, ALONE),
    Bug(sum_for_mean, "pytorch #162338", "replay_gradients", 0, "summed instead"),
    Bug(scaled_loss, "torchtune #2172", "replay_gradients", 0, "8 times the mean"),
    Bug(mean_of_means, "transformers #34242", "replay_gradients", 0, "mean of means"),
    Bug(
        learning_rate_divided,
        "verl-SpeCo #29",
        "replay_parameters",
        0,
        "divided by the number of processes",
    ),
    Bug(
        optimizer_state_not_restored,
        "Lightning #17543",
        "replay_parameters",
        LATER,
        "not restored",
    ),
    Bug(
        missing_broadcast,
        "documented contract of DDP",
        "ranks",
        0,
        "other start weights",
    ),
    Bug(
        buffers_not_synchronized,
        "documented option of DDP",
        "replay_buffers",
        1,
        "not broadcast",
        model="batch_norm",
    ),
    Bug(duplicate_samples, "pytorch #25162", "data", 0, "duplicated"),
    Bug(
        missing_set_epoch,
        "documented trap of DistributedSampler",
        "data",
        STEPS_PER_EPOCH,
        "no new order",
    ),
    Bug(another_data_seed, "documented trap of samplers", "data", 0, "other samples"),
    Bug(redundant_sync, "Lightning #4092", "reduced_once", 0, ""),
    Bug(
        unused_parameter,
        "documented contract of DDP",
        "reduced_once",
        0,
        ALONE,
        model="spare_parameter",
        last_step=0,
    ),
    Bug(mismatched_bucket_order, "documented contract of DDP", "ranks", 0, "unknown"),
    Bug(low_precision_reduce, "torch's bf16 hook", "replay_gradients", 0, "bfloat16"),
]
