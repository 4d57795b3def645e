"""Passes that change nothing, for the witness: the training loop without its step.

In eval mode the loss of a sample depends on that sample alone, whatever the model does
in training: no dropout, no statistics of a batch. So after the last step each rank goes
through the loop once more in eval mode, with the same batches, weights, strategy and
reductions, and the gradient that comes out can be held to that of one whole batch.
Where training is in 16 bits it does so twice, with and without them.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minitrain.data.batches import Batches
from minitrain.sync.strategy import Strategy, Tuning, trained
from minitrain.train.buffers import untouched_buffers
from minitrain.train.clock import StepClock, always_plain
from minitrain.train.loop import TrainResult, train
from minitrain.train.precision import Precision
from minitrain.train.recorder import Recorder, Row
from minitrain.train.rng import Stream, untouched_random_state

Streams = Mapping[int, Stream] | None


class NoStep:
    """An optimizer that leaves everything as it is."""

    state: Mapping[Any, Any] = {}

    def step(self) -> None:
        """Take none."""

    def zero_grad(self) -> None:
        """Keep them."""


class OnlyAutocast(Precision):
    """The 16 bits of another precision, but the loss as it is."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def autocast(self) -> AbstractContextManager[Any]:
        return self._precision.autocast()


class OnlyGradients(Recorder):
    """Keeps the gradients of its steps, and nothing else."""

    def begin(self, step: int, moments: Any) -> None:
        """Nothing is kept of what the step starts from."""

    def state(self, step: int, precision: Row | None = None) -> None:
        """Nothing comes of it."""


def add_probes(
    result: TrainResult,
    sync: Strategy,
    batches: Batches,
    step: int,
    precision: Precision,
    streams: Streams,
) -> None:
    """Add to ``result`` the losses and gradients of ``step`` in eval mode, or a row
    that says why some rank cannot.

    Call it on all ranks, when the states have been saved.
    """
    passes = {"probe": Precision()}
    if type(precision) is not Precision:
        passes["rounded"] = OnlyAutocast(precision)
    sync.module.eval()
    if reason := _first(_why_not(sync, batches, step)):
        result.hashes.append({"kind": "no probe", "step": step, "reason": reason})
        return
    for name, own in passes.items():
        sync.model.zero_grad()
        with untouched_buffers(sync.model), untouched_random_state():
            once, recorder = _once(sync, batches, step, own, streams)
        result.probes[name] = once.losses[0]
        for key, tensor in recorder.kept["sampled"].items():
            _, _, parameter = key.split("/", 2)
            result.kept["sampled"][f"{name}/gradients/{parameter}"] = tensor


def _why_not(sync: Strategy, batches: Batches, step: int) -> str:
    """Why this rank cannot compute in eval mode, found out without the others; empty
    where it can. A collective that a rank does not reach would hang the rest.
    """
    # who cannot go without collectives has them in this pass too
    if not type(sync).has_account:
        return ""
    part = batches.parts(step)[0]
    sync.model.zero_grad()
    try:
        with untouched_buffers(sync.model), untouched_random_state(), sync.silent():
            loss = batches.loss(sync.module, part.inputs)
            loss.backward()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    finally:
        unused = [n for n, p in trained(sync.model).items() if p.grad is None]
        sync.model.zero_grad()
    if not bool(loss.isfinite()):
        return f"the loss is {loss.item()}"
    if unused and not sync.tuning.find_unused_parameters:
        return f"parameter {unused[0]} is not used"
    return ""


def _first(reason: str) -> str:
    """The reason of the first rank that has one; the same on all of them."""
    if not dist.is_initialized():
        return reason
    reasons: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), "")


def unwatched_gradients(
    make: Callable[[], nn.Module],
    strategy: type[Strategy],
    tuning: Tuning,
    batches: Batches,
    precision: Precision,
) -> Row | None:
    """Hashes of the gradients of step 0 under DDP as torch has it; None where the
    strategy is another thing without its hook.

    ``make`` builds the model as a rank starts it, and leaves the random numbers where
    training finds them. Call it on all ranks, before the model that is trained is made.
    """
    if not (strategy.only_watches() and tuning.overlap):
        return None
    model = make()
    sync = strategy(model, tuning, timed=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    _, recorder = _once(sync, batches, 0, precision, None, optimizer)
    sync.close()
    row = next(row for row in recorder.rows if row["kind"] == "tensors")
    return {"kind": "unwatched", "step": 0, "gradients": row["gradients"]}


def _once(
    sync: Strategy,
    batches: Batches,
    step: int,
    precision: Precision,
    streams: Streams,
    optimizer: Any = None,
) -> tuple[TrainResult, Recorder]:
    recorder = OnlyGradients(sync.model, [step], [step])
    clock = StepClock(kind_of_step=always_plain)
    optimizer = optimizer or NoStep()
    args = (sync, batches, optimizer, [step], recorder, clock, precision, streams)
    return train(*args), recorder
