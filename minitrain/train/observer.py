"""Training observers: the losses of the last step, or timing and hashing."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import barrier
from minitrain.comm.heartbeat import Heartbeat, my_heartbeat
from minitrain.core.cpu_load import Usage
from minitrain.core.errors import UserError
from minitrain.data.batches import MicroBatch
from minitrain.train.clock import NS_PER_MS, Row, StepClock, bucket_times
from minitrain.train.rng import untouched
from minitrain.train.step_record import StepRecord, TrainResult

if TYPE_CHECKING:
    from minitrain.train.worker import Worker


# lists of a result with an entry per step
LISTS = ("losses", "digests", "timings")


class Observer:
    """Base class of observers, which do not change what is computed: it keeps only the
    losses of the last step, for speed comparisons. :meth:`Worker.train` calls hooks in
    this order, those of the passes for each micro-batch:

        begin(step), after_data(micro_batches), before_forward(), after_forward(loss),
        after_backward(), after_reduce(), before_step(), after_step()

    ``loss`` is 0-dim and not yet weighted. Gradients are synchronized at
    ``after_reduce``, unscaled at ``before_step``, and cleared at ``after_step``.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self._micro_batches: Sequence[MicroBatch] = ()
        self._losses: list[Tensor] = []

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    begin = before_forward = after_backward = _nothing
    after_reduce = before_step = after_step = restore = _nothing

    def after_data(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._micro_batches, self._losses = micro_batches, []

    def after_forward(self, loss: Tensor) -> None:
        self._losses.append(loss)

    def shares(self) -> list[float]:
        """Return :func:`shares_of_loss` of the last step; may wait for a GPU."""
        return shares_of_loss(self._losses, self._micro_batches)

    def kept(self) -> Row:
        """Return the observations so far, for a checkpoint, as values of JSON;
        ``restore(kept)`` continues from them.
        """
        return {}

    def sampled(self) -> dict[str, Tensor]:
        """Return sampled tensors by name, for the witness (default: none)."""
        return {}


class StepObserver(Observer):
    """Time every step, and hash recorded steps outside of timed regions.

    Args:
        watches: Repeat the backward pass of some steps without communication, and time
            it separately.
        keep: Step whose tensors are kept in memory (:class:`StepRecord`), if any.
        records: Hash steps, and write a heartbeat; else take times, and look at the
            first forward pass (:meth:`StepRecord.after_forward`).
    """

    def __init__(
        self,
        worker: "Worker",
        watches: bool = False,
        keep: int | None = None,
        records: bool = True,
    ) -> None:
        super().__init__(worker)
        config, none = worker.config, set[int]()
        hashed = (config.recorded, config.sampled) if records else (none, none)
        self.recorder = StepRecord(worker.model, *hashed, keep)
        on_gpu = worker.device.type == "cuda"
        wait = torch.cuda.synchronize if on_gpu else (lambda: None)
        self.clock = StepClock(wait, watches)
        rows, sampled = self.recorder.rows, self.recorder.sampled
        self.result = TrainResult(hashes=rows, sampled=sampled)
        self._step = 0
        # a checkpoint was written or read since the last step
        self._was_interrupted = False
        self._records = records
        self._began = Usage.now()
        self.place = my_heartbeat() if records else Heartbeat()

    def kept(self) -> Row:
        self._was_interrupted = True
        lists = {name: getattr(self.result, name) for name in LISTS}
        return lists | self.recorder.kept()

    def usage(self) -> Usage:
        """Return the CPU usage since this process began to train."""
        return Usage.now().since(self._began)

    def sampled(self) -> dict[str, Tensor]:
        # their hashes are compared between ranks, so one rank's are enough
        return {} if self.worker.rank else self.recorder.sampled

    def restore(self, kept: Row) -> None:
        self._was_interrupted = True
        for name in LISTS:
            setattr(self.result, name, kept[name])
        self.recorder.restore(kept)

    def begin(self, step: int) -> None:
        self._step = step
        if self._was_interrupted:
            self.clock.restart()
        self.place.mark(step, "data")
        self.recorder.begin(step)
        if step in self.recorder.sampled_steps:
            moments = self.worker.sync.moments(self.worker.optimizer)
            self.recorder.start(step, moments)
        self.clock.begin(step)

    def after_data(self, micro_batches: Sequence[MicroBatch]) -> None:
        super().after_data(micro_batches)
        self.clock.mark("data")

    def before_forward(self) -> None:
        if self._losses:
            # a strategy may add up gradients between micro-batches
            self.clock.mark("backward")
        self.recorder.before_forward()
        self.place.enter("forward")

    def after_forward(self, loss: Tensor) -> None:
        self.recorder.after_forward()
        super().after_forward(loss)
        self.clock.mark("forward")
        if self.clock.kind == "bracketed":
            barrier()
            self.clock.restart()
        self.place.enter("backward")

    def after_backward(self) -> None:
        self.place.enter("reduce")
        if self.clock.kind == "bracketed":
            barrier()
        self.clock.mark("backward")

    def after_reduce(self) -> None:
        self.clock.mark("backward")
        row, trace = self.clock.row, self.worker.sync.trace
        row |= bucket_times(trace, row["backward_ms"], self.clock.now_ns)

    def before_step(self) -> None:
        self.clock.mark("other")
        self.place.enter("optimizer")
        if self._step in self.recorder.steps:
            self.recorder.layout(self._step, self.worker.sync.trace)
            self.recorder.gradients(self._step)
            self.clock.restart()

    def after_step(self) -> None:
        self.clock.mark("optimizer")
        self.place.enter("record")
        spent = self.worker.sync.trace.optimizer_ns
        self.clock.carve("optimizer", "optimizer_comm", spent)
        row = self.clock.finish() | {
            "recorded": self._step in self.recorder.steps,
            "after_interruption": self._was_interrupted,
        }
        self._was_interrupted = False
        if row["recorded"]:
            self.recorder.state(self._step, self.worker.precision.scaler.state_dict())
            # waits for slower hashing must not count for the next step
            barrier()
        if self.clock.kind == "bracketed":
            row["backward_compute_ms"] = self._backward_alone_ms()
        computed = self._micro_batches
        # DDP times only the last of several passes
        if (self.clock.watches or not self._records) and len(computed) == 1:
            row |= self.worker.sync.logged()
        row["tokens"] = sum(one.num_targets for one in computed)
        result = self.result
        result.timings.append(row)
        if self._records:
            result.digests.append([d for one in computed for d in one.digests])
            result.losses.append(self.shares())
            self.recorder.fed(self._step, computed)
        self.clock.restart()

    def _backward_alone_ms(self) -> float:
        # without communication, and without lasting changes
        worker, clock, total = self.worker, self.clock, 0
        with untouched(worker.model), worker.sync.no_sync():
            for micro_batch in self._micro_batches:
                loss = worker.forward(micro_batch)
                barrier()
                clock.restart()
                start = clock.now_ns
                loss.backward()
                clock.restart()
                total += clock.now_ns - start
        worker.model.zero_grad()
        # waits for slower ranks must not count for the next step
        barrier()
        return total / NS_PER_MS


def watches_parts(worker: "Worker") -> StepObserver:
    """Return the observer of a run of stage ``train``. If the strategy has a backward
    pass without communication, that is timed too, to split step time into parts.
    """
    return StepObserver(worker, worker.sync.has_account)


def shares_of_loss(
    losses: Sequence[Tensor], micro_batches: Sequence[MicroBatch]
) -> list[float]:
    """Return each micro-batch's share of the mean loss over the global batch's targets.
    The shares of all ranks add up to that mean loss. Reading the 0-dim ``losses`` waits
    for a GPU. Raises UserError if a loss is not finite.
    """
    shares = []
    for loss, micro_batch in zip(losses, micro_batches, strict=True):
        value = loss.item()
        if not math.isfinite(value):
            rank = dist.get_rank() if dist.is_initialized() else 0
            raise UserError(
                f"train: the loss is {value} at step {micro_batch.step} on rank "
                f"{rank}; a smaller train.learning_rate may keep it finite"
            )
        shares.append(value * micro_batch.num_targets / micro_batch.global_targets)
    return shares
