"""Real data-parallel bugs, each planted in a rank without touching the code under test.

A plant is called in every rank before its first step and spoils what that rank trains
with: its wrapper, its batches, its optimizer. ``BUGS`` says where each was met, which
check is meant to catch it, and what the locator should say.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from minitrain.data.batches import Batch
from minitrain.distributed.groups import unwrap, wrap_for_ddp
from minitrain.sync.stock import StockDDP
from minitrain.testing.trial import Plant, Seat

# from this step on, or at it, where a bug does not begin with the first step
LATER = 3
STEPS_PER_EPOCH = 4
VICTIM = 1


@dataclass(frozen=True)
class Bug:
    """``check`` catches it, at step ``step``; the locator's cause contains ``cause``
    (empty: it alters nothing that is computed). ``last_step`` is the last one that is
    not an error.
    """

    plant: Plant
    met_in: str
    check: str
    step: int
    cause: str
    model: str = "plain"
    last_step: int | None = None

    @property
    def name(self) -> str:
        """The plant's."""
        return self.plant.__name__

    def steps(self, wanted: int) -> int:
        """``wanted``, or as many as come before an error."""
        return wanted if self.last_step is None else self.last_step + 1


def wrapper_bypassed(seat: Seat) -> None:
    """The loss is computed with the plain module, so DDP never hears of it."""
    seat.sync.module = unwrap(seat.sync.module)


def sum_for_mean(seat: Seat) -> None:
    """The all-reduce adds up, and nobody divides."""
    _stock(seat)._factor = 1.0


def scaled_loss(seat: Seat) -> None:
    """The loss is multiplied by a constant."""
    right = seat.batches.loss

    def loss(model: torch.nn.Module, inputs: Any) -> Tensor:
        return right(model, inputs) * 8

    _set(seat.batches, loss=loss)


def learning_rate_divided(seat: Seat) -> None:
    """The learning rate is divided by the number of processes."""
    for group in seat.optimizer.param_groups:
        group["lr"] /= seat.world_size


def mean_of_means(seat: Seat) -> None:
    """Each rank's mean counts the same, however many targets it has."""
    from minitrain.train import loop as training

    _set(training, weighted_loss=lambda loss, batch, world_size: loss)


def group_of_one(seat: Seat) -> None:
    """Each rank reduces in a group of its own."""
    groups = [dist.new_group([rank]) for rank in range(seat.world_size)]
    tuning = seat.sync.tuning
    seat.sync = StockDDP(seat.model, tuning, group=groups[seat.rank])


def missing_broadcast(seat: Seat) -> None:
    """One rank starts from its own weights."""
    if seat.rank == VICTIM:
        with torch.no_grad():
            for parameter in seat.model.parameters():
                parameter.normal_(std=0.02)


def buffers_not_synchronized(seat: Seat) -> None:
    """Rank 0's buffers are not handed out before the forward pass."""
    _stock(seat)._ddp.broadcast_buffers = False


def optimizer_state_not_restored(seat: Seat) -> None:
    """A resumed run whose optimizer begins anew."""

    def clear(step: int, batch: Batch) -> Batch:
        if step == LATER:
            seat.optimizer.state.clear()
        return batch

    _change_batches(seat, clear)


def duplicate_samples(seat: Seat) -> None:
    """A sampler that fills up with samples that are there already."""

    def double(step: int, batch: Batch) -> Batch:
        if seat.rank != VICTIM:
            return batch
        inputs = {name: tensor.clone() for name, tensor in batch.inputs.items()}
        for tensor in inputs.values():
            tensor[0] = tensor[1]
        digests = (batch.digests[1], *batch.digests[1:])
        return replace(batch, inputs=inputs, digests=digests)

    _change_batches(seat, double)


def missing_set_epoch(seat: Seat) -> None:
    """The order of the first epoch, again and again."""
    whole = seat.batches.parts

    def parts(step: int) -> list[Batch]:
        return [replace(part, step=step) for part in whole(step % STEPS_PER_EPOCH)]

    _set(seat.batches, parts=parts)


def redundant_sync(seat: Seat) -> None:
    """Gradients that are averaged already are averaged once more."""
    sync = _stock(seat)
    reduce = sync._reduce

    def twice(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        def again(future: torch.futures.Future[Any]) -> Tensor:
            bucket.buffer().copy_(future.value())
            return reduce(bucket).wait()

        return reduce(bucket).then(again)

    _rewrap(sync, twice)


def missing_last_sync(seat: Seat) -> None:
    """The step at the end of an accumulation does not synchronize."""

    def skip(step: int, batch: Batch) -> Batch:
        _stock(seat)._ddp.require_backward_grad_sync = step != LATER
        return batch

    _change_batches(seat, skip)


def mismatched_bucket_order(seat: Seat) -> None:
    """One rank lays its gradients into the bucket in another order."""
    sync = _stock(seat)
    reduce = sync._reduce

    def flipped(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if seat.rank == VICTIM:
            bucket.buffer().copy_(bucket.buffer().flip(0))
        done = reduce(bucket)
        if seat.rank == VICTIM:
            return done.then(lambda future: future.value().flip(0))
        return done

    _rewrap(sync, flipped)


def another_data_seed(seat: Seat) -> None:
    """One rank shuffles with a seed of its own."""
    whole = seat.batches.parts

    def parts(step: int) -> list[Batch]:
        return [replace(part, step=step) for part in whole(step + 1)]

    if seat.rank == VICTIM:
        _set(seat.batches, parts=parts)


def unused_parameter(seat: Seat) -> None:
    """A parameter without gradient: its bucket waits for it, and step 0 passes."""


def low_precision_reduce(seat: Seat) -> None:
    """Gradients travel in bfloat16."""
    sync = _stock(seat)

    def compressed(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        buffer.copy_(buffer.bfloat16())
        return sync._reduce(bucket).then(
            lambda future: future.value().bfloat16().to(buffer.dtype)
        )

    _rewrap(sync, compressed)


def _stock(seat: Seat) -> StockDDP:
    assert isinstance(seat.sync, StockDDP)
    return seat.sync


def _set(thing: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(thing, name, value)


def _change_batches(seat: Seat, change: Callable[[int, Batch], Batch]) -> None:
    whole = seat.batches.parts
    _set(seat.batches, parts=lambda step: [change(step, p) for p in whole(step)])


def _rewrap(sync: StockDDP, hook: Callable[[Any, Any], Any]) -> None:
    # DDP takes one hook only, so the model gets a new wrapper
    sync._ddp = sync.module = wrap_for_ddp(unwrap(sync.module))
    sync._ddp.register_comm_hook(None, hook)


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
    Bug(missing_broadcast, "documented contract of DDP", "ranks", 0, "other weights"),
    Bug(
        buffers_not_synchronized,
        "documented option of DDP",
        "replay_buffers",
        1,
        "not handed out",
        model="batch_norm",
    ),
    Bug(duplicate_samples, "pytorch #25162", "data", 0, "there twice"),
    Bug(
        missing_set_epoch,
        "documented trap of DistributedSampler",
        "data",
        STEPS_PER_EPOCH,
        "no new order",
    ),
    Bug(another_data_seed, "documented trap of samplers", "data", 0, "reads other"),
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
