"""One process that computes whole batches: the measure of all runs.

Where training is unstable at its learning rate, rounding grows without bound, and no
tolerance can tell it from a fault. From a start that differs in the last bit, the same
process measures whether it does.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.proof.bits import Tensors
from minitrain.proof.replay import BucketLayout, replay
from minitrain.proof.tolerances import Compared, Twin
from minitrain.sync.catalog import PLAIN
from minitrain.sync.strategy import Strategy
from minitrain.train.loop import mean_losses, steps_to_train
from minitrain.train.precision import make_precision
from minitrain.train.recorder import Recorder, recorded_steps
from minitrain.train.run import (
    optimizer_of,
    rows_of,
    shard_batches,
    start_model,
    start_streams,
)


def one_process(
    params: Params,
    shards: Path,
    prepare: Callable[[nn.Module], None] | None = None,
    most_steps: int | None = None,
) -> Compared:
    """Train as ``params`` say, but alone, and each batch at once.

    ``shards`` is a folder world-1; ``prepare`` changes the start; ``most_steps`` ends
    it early.
    """
    params = params.with_train(sync=PLAIN, grad_accumulation_steps=1)
    train = params.train
    torch.set_num_threads(train.threads_per_process)
    batches = shard_batches(params, shards, 1)
    streams = start_streams(params, 1)
    model = start_model(params, 0)
    if prepare is not None:
        prepare(model)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    num_steps = steps_to_train(train, len(batches[0].order))
    num_steps = min(num_steps, most_steps or num_steps)
    (result,) = replay(
        model,
        batches,
        BucketLayout([], model),
        optimizer_of(model, train),
        progress(range(num_steps), "one process", total=num_steps),
        Recorder(model, recorded_steps(num_steps, num_steps)),
        streams,
        Strategy,
        1,
        make_precision(train.precision),
    )
    return Compared(
        rows=rows_of([result]),
        gradients=result.kept["gradients"],
        early=result.kept["early"],
        state=dict(model.state_dict()),
        losses=mean_losses([result]),
        start=start,
    )


def twin_of(params: Params, shards: Path) -> Twin:
    """:func:`one_process` from a start one ULP away, of as many steps as asked."""

    @cache
    def twin(most_steps: int | None) -> Compared:
        return one_process(params, shards, nudge, most_steps)

    return twin


def start_of(params: Params) -> Tensors:
    """The state that every run starts from."""
    return dict(start_model(params, 0).state_dict())


def nudge(model: nn.Module) -> None:
    """Move every trained parameter one unit in the last place up."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                up = torch.full_like(parameter, torch.inf)
                parameter.copy_(torch.nextafter(parameter, up))
