"""Training observers: the last losses alone, or timing and hashing."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import barrier
from minitrain.comm.heartbeat import Heartbeat, my_heartbeat
from minitrain.core.errors import UserError
from minitrain.core.load import Usage
from minitrain.data.batches import MicroBatch
from minitrain.train.clock import NS_PER_MS, Row, StepClock, bucket_times
from minitrain.train.rng import untouched
from minitrain.train.step_record import StepRecord, TrainResult

if TYPE_CHECKING:
    from minitrain.train.worker import Worker


# what a StepObserver notes of every step
LISTS = ("losses", "digests", "timings")


class Observer:
    """Remember the losses of the last step, and nothing else: for runs whose speed is
    compared. The loop calls each method at its phase of a step, in this order; what an
    observer does is no part of the computation.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self._micro_batches: Sequence[MicroBatch] = ()
        self._losses: list[Tensor] = []

    def begin(self, step: int) -> None:
        """``step`` begins."""

    def after_data(self, micro_batches: Sequence[MicroBatch]) -> None:
        """The rank has its samples, as the micro-batches that it computes in order."""
        self._micro_batches, self._losses = micro_batches, []

    def before_forward(self) -> None:
        """The next micro-batch is about to be computed."""

    def after_forward(self, loss: Tensor) -> None:
        """Its loss is there: a 0-dim tensor, not yet weighted."""
        self._losses.append(loss)

    def after_backward(self) -> None:
        """Its gradients are added to those that were there."""

    def after_reduce(self) -> None:
        """All gradients are synchronized."""

    def before_step(self) -> None:
        """They have the scale of the loss; the optimizer is about to use them."""

    def after_step(self) -> None:
        """The parameters have changed, the gradients are gone."""

    def shares(self) -> list[float]:
        """Return :func:`shares_of_loss` of the last step; not while it is timed."""
        return shares_of_loss(self._losses, self._micro_batches)

    def kept(self) -> Row:
        """Return what was seen so far, in plain values, for a checkpoint."""
        return {}

    def sampled(self) -> dict[str, Tensor]:
        """Return the tensors for the witness that rank 0 has; empty on other ranks."""
        return {}

    def restore(self, kept: Row) -> None:
        """Go on from what :meth:`kept` gave."""


class StepObserver(Observer):
    """Time every step, and hash the recorded ones in between. ``watches``: the backward
    pass of some steps is made once more without communication, to time it alone.
    ``keep``: see the recorder. Unless it ``records``, times alone are kept: no step is
    hashed, and what watches ranks does not hear of their steps.
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
        # between two steps a checkpoint was written or read
        self._was_interrupted = False
        self._records = records
        self._began = Usage.now()
        self.place = my_heartbeat() if records else Heartbeat()

    def kept(self) -> Row:
        self._was_interrupted = True
        lists = {name: getattr(self.result, name) for name in LISTS}
        return lists | self.recorder.kept()

    def sampled(self) -> dict[str, Tensor]:
        # the same everywhere, as their hashes show: those of one rank are enough
        return {} if self.worker.rank else self.recorder.sampled

    def restore(self, kept: Row) -> None:
        self._was_interrupted = True
        for name in LISTS:
            setattr(self.result, name, kept[name])
        # as they were before JSON, which knows lists alone
        self.result.digests = [tuple(digests) for digests in kept["digests"]]
        self.recorder.restore(kept)

    def usage(self) -> Usage:
        """Return the usage of this process since the worker was built."""
        return Usage.now().since(self._began)

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
            # between two micro-batches a strategy may add up gradients
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
            # a difference in hashing must not become the next step's wait
            barrier()
        if self.clock.kind == "bracketed":
            row["backward_compute_ms"] = self._backward_alone_ms()
        computed = self._micro_batches
        # of several passes DDP times the last one alone
        if (self.clock.watches or not self._records) and len(computed) == 1:
            row |= self.worker.sync.logged()
        row["tokens"] = sum(one.num_targets for one in computed)
        result = self.result
        result.timings.append(row)
        if self._records:
            result.digests.append(tuple(d for one in computed for d in one.digests))
            result.losses.append(self.shares())
            self.recorder.fed(self._step, computed)
        self.clock.restart()

    def _backward_alone_ms(self) -> float:
        # without communication, and without leaving a trace behind
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
        # nor must what one rank is late by become the next step's wait
        barrier()
        return total / NS_PER_MS


def watches_parts(worker: "Worker") -> StepObserver:
    """Return the observer of a run with a step account, where there can be one."""
    return StepObserver(worker, worker.sync.has_account)


def shares_of_loss(
    losses: Sequence[Tensor], micro_batches: Sequence[MicroBatch]
) -> list[float]:
    """Return each micro-batch's share of the mean loss over the global batch's targets;
    reading the 0-dim ``losses`` waits for a GPU. Raises UserError when a loss is no
    longer finite.
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
