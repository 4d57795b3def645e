"""What a rank keeps between two steps: all that the steps to come depend on, and what
was recorded so far.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.heartbeat import my_place
from minitrain.train.checkpoint import Kept
from minitrain.train.loop import train
from minitrain.train.resume import REPEATED
from minitrain.train.rng import random_state, restore_random_state
from minitrain.train.worker import Worker


@dataclass(frozen=True)
class RankInSteps:
    """A worker as a :class:`~minitrain.train.resume.Resumable`."""

    worker: Worker

    def run(self, steps: Iterable[int]) -> None:
        """Train for ``steps``."""
        train(self.worker, steps)

    def kept(self) -> Kept:
        """Return views of the worker's tensors, to be written before it goes on: of
        tensors that ranks share, only this rank's part.
        """
        my_place().enter("checkpoint")
        worker = self.worker
        sync, streams = worker.sync, worker.streams or {}
        return {
            "model": _tensors_of(worker.model),
            "optimizer": _local(sync.optimizer_state(worker.optimizer)),
            "precision": worker.precision.state(),
            "sync": sync.kept(),
            "random": random_state(),
            "streams": {shard: stream.state for shard, stream in streams.items()},
            "seen": json.dumps(worker.observer.kept()),
            "sampled": _later(worker.observer.sampled()),
        }

    def restore(self, kept: Kept) -> None:
        """Put back what :meth:`kept` took out, into a worker that has made a step."""
        worker, sync = self.worker, self.worker.sync
        with torch.no_grad():
            for name, tensor in _tensors_of(worker.model).items():
                tensor.copy_(kept["model"][name])
        sync.restore_optimizer(worker.optimizer, kept["optimizer"])
        worker.precision.restore(kept["precision"])
        sync.restore(kept["sync"])
        worker.optimizer.zero_grad()
        worker.observer.restore(json.loads(kept["seen"]))
        worker.observer.sampled().update(kept["sampled"])
        for shard, stream in (worker.streams or {}).items():
            stream.state = kept["streams"][shard]
        # a rank that was not there has its own, from its start
        if kept["random"] is not None:
            restore_random_state(kept["random"])


def _later(sampled: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # the first steps, "early" among them, a resumed run computes again
    steps = ((key, key.partition("/")[0]) for key in sampled)
    late = [key for key, step in steps if step.isdigit() and int(step) >= REPEATED]
    return {key: sampled[key] for key in late}


def _tensors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    # a state dict lacks buffers that are not persistent
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: _local(tensor.detach()) for name, tensor in named.items()}


def _local(value: Any) -> Any:
    # this rank's part in the place of tensors that ranks share
    if isinstance(value, Mapping):
        return {key: _local(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_local(one) for one in value]
    part = getattr(value, "to_local", None)
    return value if part is None else part()
