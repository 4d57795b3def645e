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
from torch import nn

from minitrain.batches import Batches
from minitrain.clock import StepClock, always_plain
from minitrain.hashes import Recorder, Row
from minitrain.precision import Precision
from minitrain.randomness import Stream
from minitrain.sync import Strategy, Tuning
from minitrain.training import TrainResult, train

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


def add_probes(
    result: TrainResult,
    sync: Strategy,
    batches: Batches,
    step: int,
    precision: Precision,
    streams: Streams,
) -> None:
    """Add to ``result`` the losses and gradients of ``step`` in eval mode.

    Call it on all ranks, when the states have been saved: buffers may change.
    """
    passes = {"probe": Precision()}
    if type(precision) is not Precision:
        passes["rounded"] = OnlyAutocast(precision)
    sync.module.eval()
    for name, own in passes.items():
        sync.model.zero_grad()
        try:
            once, recorder = _once(sync, batches, step, own, streams)
        except Exception:
            # no model has to work in eval mode; the witness tries whether it does
            return
        result.probes[name] = once.losses[0]
        for key, tensor in recorder.kept["sampled"].items():
            _, kind, parameter = key.split("/", 2)
            if kind == "gradients":
                result.kept["sampled"][f"{name}/gradients/{parameter}"] = tensor


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
    if not (strategy.only_watches and tuning.overlap):
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
    recorder = Recorder(sync.model, [step], [step])
    clock = StepClock(kind_of_step=always_plain)
    optimizer = optimizer or NoStep()
    args = (sync, batches, optimizer, [step], recorder, clock, precision, streams)
    return train(*args), recorder
