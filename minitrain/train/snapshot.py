"""What a rank keeps between two steps, taken out of a worker and put back into one.

All that the steps to come depend on, and what was recorded so far: the worker's model
with its buffers, optimizer, loss scaler and streams of random numbers, the generators
of its process, what its strategy keeps, and what its observer has seen.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minitrain.train.checkpoint import Kept
from minitrain.train.resume import REPEATED
from minitrain.train.rng import (
    as_plain,
    from_plain,
    random_state,
    restore_random_state,
)
from minitrain.train.worker import Worker


def kept_by(worker: Worker) -> Kept:
    """What ``worker`` keeps: views of its tensors, to be written before it goes on.
    Where ranks hold a part of a tensor each, only this rank's part.
    """
    sync, streams = worker.sync, worker.streams or {}
    return {
        "model": _tensors_of(worker.model),
        "optimizer": _local(sync.optimizer_state(worker.optimizer)),
        "precision": worker.precision.state(),
        "sync": sync.kept(),
        "random": as_plain(random_state()),
        "streams": {shard: as_plain(one.state) for shard, one in streams.items()},
        "observer": worker.observer.kept(),
        "sampled": _later(worker.observer.sampled()),
    }


def restore(worker: Worker, kept: Kept) -> None:
    """Put back what :func:`kept_by` took out, into a worker of the same description
    that has made at least one step.
    """
    sync = worker.sync
    with torch.no_grad():
        for name, tensor in _tensors_of(worker.model).items():
            tensor.copy_(kept["model"][name])
    sync.restore_optimizer(worker.optimizer, kept["optimizer"])
    worker.precision.restore(kept["precision"])
    sync.restore(kept["sync"])
    worker.optimizer.zero_grad()
    worker.observer.restore(kept["observer"])
    worker.observer.sampled().update(kept["sampled"])
    for shard, stream in (worker.streams or {}).items():
        stream.state = from_plain(kept["streams"][shard])
    # a rank that was not there has its own, from its start
    if kept["random"] is not None:
        restore_random_state(from_plain(kept["random"]))


def _later(sampled: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the steps that a resumed run does not compute again."""
    steps = {key: key.partition("/")[0] for key in sampled}
    later = {k for k, s in steps.items() if s.isdigit() and int(s) >= REPEATED}
    return {key: sampled[key] for key in sampled if key in later}


def _tensors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers: a state dict lacks those that are not persistent."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: _local(tensor.detach()) for name, tensor in named.items()}


def _local(value: Any) -> Any:
    """``value`` with this rank's part in the place of tensors that ranks share."""
    if isinstance(value, Mapping):
        return {key: _local(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_local(one) for one in value]
    part = getattr(value, "to_local", None)
    return value if part is None else part()
