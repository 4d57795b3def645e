"""Worker: a rank that is ready to train.

All training code builds a :class:`Worker` from a
:class:`~minitrain.train.config.RunConfig`. Later steps depend only on the worker's
state, and on the process's random generators if ``streams`` is None.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.heartbeat import my_heartbeat
from minitrain.comm.tree import shards_of
from minitrain.data.batches import MicroBatch
from minitrain.train.config import RunConfig
from minitrain.train.observer import Observer
from minitrain.train.precision import Precision
from minitrain.train.rng import Stream, random_state, restore_random_state

# steps that a resumed run computes once more: as many as are recorded anyway
REPEATED = 3


class Worker:
    """Model, strategy, optimizer, batches and random numbers of one rank, on ``device``
    (None: CPU). The constructor is collective over ``group``, the ranks that train
    together (None: all). ``timed``: the strategy records the times of its buckets.

    Attributes:
        model: The plain module; ``sync`` wraps it.
        streams: Random generators by shard if a rank may have several, else None.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        timed: bool = True,
        observer: Callable[["Worker"], Observer] = Observer,
    ) -> None:
        together = dist.is_initialized()
        self.config, self.device = config, device or torch.device("cpu")
        self.rank = dist.get_rank(group) if together else 0
        self.world_size = dist.get_world_size(group) if together else 1
        count = config.num_shards(self.world_size)
        mine = shards_of(self.rank, self.world_size, count)
        self.batches = config.batches(mine, count, device)
        # Before the model, because building one seeds: a stream starts with the
        # generators as the model of its shard leaves them, and training as the rank's
        # own does. A rank with one shard uses the generators of the process.
        every = start_streams(config, count) if count != self.world_size else None
        self.streams = {shard: every[shard] for shard in mine} if every else None
        self.model = config.start_model(self.rank).to(self.device)
        self.sync = config.sync(self.model, config.tuning, group=group, timed=timed)
        kind = config.kind_of_optimizer
        self.optimizer: Any = self.sync.optimizer(kind, config.learning_rate)
        self.precision = Precision(config.precision, self.device.type)
        self.observer = observer(self)

    def train(self, steps: Iterable[int]) -> None:
        """Train for ``steps`` (step numbers from 0), and call the observer's hooks.
        Collective. Raises their errors, such as UserError if a loss is not finite.
        """
        observer = self.observer
        for step in steps:
            observer.begin(step)
            micro_batches = self.batches.micro_batches(step)
            observer.after_data(micro_batches)
            self.sync.begin()
            for micro_batch in micro_batches:
                is_last = micro_batch is micro_batches[-1]
                with self.micro_step(micro_batch, is_last):
                    observer.before_forward()
                    loss = self.forward(micro_batch)
                    observer.after_forward(loss)
                    self.backward(loss, micro_batch)
                    observer.after_backward()
            self.sync.reduce()
            observer.after_reduce()
            self.precision.unscale(self.optimizer, self.sync.agree_on_overflow)
            observer.before_step()
            self.step()
            observer.after_step()

    @contextmanager
    def micro_step(self, micro_batch: MicroBatch, is_last: bool) -> Iterator[None]:
        """Context manager for both passes of ``micro_batch``: enters the strategy's
        context, and uses the random numbers of the shard. ``is_last``: this is the last
        micro-batch of the step, in which DDP synchronizes.
        """
        shard = micro_batch.shard
        random = nullcontext() if self.streams is None else self.streams[shard]
        with self.sync.micro_step(shard, is_last), random:
            yield

    def forward(self, micro_batch: MicroBatch) -> Tensor:
        """Return the mean loss over the targets of ``micro_batch``, 0-dim."""
        with self.precision.autocast():
            return self.batches.loss(self.sync.module, micro_batch.inputs)

    def weighted(self, loss: Tensor, micro_batch: MicroBatch) -> Tensor:
        """Return ``loss`` times a weight, such that the sum of all micro-batches'
        gradients, divided by the strategy's divisor, is the gradient of the mean loss
        over the global batch's targets.
        """
        share = micro_batch.num_targets * self.sync.divisor / micro_batch.global_targets
        return loss * share

    def backward(self, loss: Tensor, micro_batch: MicroBatch) -> None:
        """Run the backward pass of the weighted, scaled loss; gradients accumulate."""
        self.precision.scaler.scale(self.weighted(loss, micro_batch)).backward()

    def step(self) -> None:
        """Step the optimizer unless a gradient overflowed, and clear the gradients."""
        self.precision.step(self.optimizer)
        # the model's, because an optimizer may have only some of the parameters
        self.model.zero_grad()

    def kept(self) -> dict[str, Any]:
        """Return all state that later steps depend on and the observations so far, for
        a checkpoint; tensors are views, of this rank's shard if sharded. Collective.
        """
        my_heartbeat().enter("checkpoint")
        streams = self.streams or {}
        # a resumed run computes the first steps, "early" among them, once more
        first = {"early", *map(str, range(REPEATED))}
        sampled = self.observer.sampled()
        return {
            "model": _tensors_of(self.model),
            "optimizer": _local(self.sync.optimizer_state(self.optimizer)),
            "precision": self.precision.scaler.state_dict(),
            "sync": self.sync.kept(),
            "random": random_state(),
            "streams": {shard: stream.state for shard, stream in streams.items()},
            "seen": json.dumps(self.observer.kept()),
            "sampled": {
                k: v for k, v in sampled.items() if k.partition("/")[0] not in first
            },
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Load the state from :meth:`kept`. Call this after at least one step."""
        with torch.no_grad():
            for name, tensor in _tensors_of(self.model).items():
                tensor.copy_(kept["model"][name])
        self.sync.restore_optimizer(self.optimizer, kept["optimizer"])
        self.precision.scaler.load_state_dict(kept["precision"])
        self.sync.restore(kept["sync"])
        self.model.zero_grad()
        self.observer.restore(json.loads(kept["seen"]))
        self.observer.sampled().update(kept["sampled"])
        for shard, stream in (self.streams or {}).items():
            stream.state = kept["streams"][shard]
        # None for a rank that the saved run did not have: it keeps its own
        if kept["random"] is not None:
            restore_random_state(kept["random"])

    def close(self) -> None:
        """Free resources that the process group does not free. Collective."""
        self.sync.close()


def start_streams(config: RunConfig, count: int) -> list[Stream]:
    """Return a stream of random numbers for each of ``count`` shards, as building the
    model of the shard leaves it. Changes the generators of the process.
    """
    streams = []
    for shard in range(count):
        config.start_model(shard)
        streams.append(Stream())
    return streams


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    # a state dict does not have buffers that are not persistent
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: _local(tensor.detach()) for name, tensor in named.items()}


def _local(value: Any) -> Any:
    # with this rank's shards in the place of DTensors
    if isinstance(value, Mapping):
        return {key: _local(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_local(one) for one in value]
    part = getattr(value, "to_local", None)
    return value if part is None else part()
