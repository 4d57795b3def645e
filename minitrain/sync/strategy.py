"""How the gradients of the ranks become one: one file per family of strategies."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.core.errors import UserError
from minitrain.distributed.ring import ring_sum

Promise = Literal["reduced_once", "replay", "one_process", "loss"]
# (calls, bytes of one rank's payload) by operation, in one step
Traffic = dict[str, tuple[int, int]]
EXACT: frozenset[Promise] = frozenset({"reduced_once", "replay", "one_process"})


@dataclass
class BucketEvent:
    """One bucket of one step: what it holds, when it was handed over and reduced.

    Times are ``perf_counter_ns`` readings; ``done_ns`` is 0 until it is reduced. Both
    are None on a GPU, where the hook only enqueues work and its clock says nothing.
    """

    parameters: tuple[str, ...]
    num_bytes: int
    called_ns: int | None
    done_ns: int | None = 0


@dataclass
class SyncTrace:
    """The buckets of the current step, in the order in which they were handed over.

    ``computed_ns`` is when the last gradient was there: from then on nothing hides
    communication. ``optimizer_ns`` is what the optimizer's step spent on it.
    """

    events: list[BucketEvent] = field(default_factory=list)
    computed_ns: int | None = None
    optimizer_ns: int | None = None

    def clear(self) -> None:
        """Forget the step before."""
        self.events.clear()
        self.computed_ns = self.optimizer_ns = None


class Tuning(Protocol):
    """What the strategies can be told: ``train`` of params.yaml has it."""

    @property
    def bucket_cap_mb(self) -> float | None: ...

    @property
    def overlap(self) -> bool: ...

    @property
    def find_unused_parameters(self) -> bool: ...

    @property
    def logical_shards(self) -> int: ...


@dataclass(frozen=True)
class Defaults:
    """A :class:`Tuning` with the defaults of params.yaml."""

    bucket_cap_mb: float | None = None
    overlap: bool = True
    find_unused_parameters: bool = False
    logical_shards: int = 8


DEFAULTS = Defaults()


class Strategy:
    """The plain module and no synchronisation; the base of all that synchronise.

    ``module`` is called for the forward pass. A step is one or more :meth:`part`, each
    a forward and a backward pass, then :meth:`reduce`: afterwards every parameter's
    gradient is the synchronised one. ``trace`` has the buckets of the step, as far as
    the strategy watches them; ``timed`` asks it to.

    ``promises`` says what the ladder may hold the strategy to. ``averages``: the ranks'
    gradients are divided by their number, and the loss is weighted accordingly.
    ``has_account``: a backward pass can be made without communication, so that the
    time of a step can be told apart. ``has_buckets``: DDP's, with their settings.
    ``own_buffers``: after a step each rank has those of its own samples.
    ``on_one_host``: all ranks must be, and compute on the CPU. ``wire``: the type that
    gradients are rounded to on their way, where it is coarser than their own.
    """

    promises: ClassVar[frozenset[Promise]] = EXACT
    averages: ClassVar[bool] = True
    has_account: bool = True
    has_buckets: ClassVar[bool] = False
    own_buffers: ClassVar[bool] = True
    on_one_host: ClassVar[bool] = False
    wire: ClassVar[torch.dtype | None] = None

    def __init__(
        self,
        model: nn.Module,
        tuning: Tuning,
        *,
        group: dist.ProcessGroup | None = None,
        timed: bool = True,
    ) -> None:
        self.model, self.tuning, self.group, self.timed = model, tuning, group, timed
        self.module: nn.Module = model
        self.trace = SyncTrace()
        self.world_size = dist.get_world_size(group) if dist.is_initialized() else 1

    @property
    def divisor(self) -> int:
        """What the sum of the ranks' gradients is divided by."""
        return self.world_size if self.averages else 1

    @classmethod
    def num_shards(cls, world_size: int, tuning: Tuning) -> int:
        """Into how many parts a global batch is cut, each with a gradient of its own
        and random numbers of its own.
        """
        return world_size

    @classmethod
    def only_watches(cls) -> bool:
        """Whether without ``timed`` it is torch's own DDP and nothing else."""
        return False

    @classmethod
    def require(cls, tuning: Tuning, world_size: int, precision: str) -> None:
        """Raise UserError for settings that the strategy cannot follow."""
        changed = {
            "bucket_cap_mb": (tuning.bucket_cap_mb, None),
            "overlap": (tuning.overlap, True),
            "find_unused_parameters": (tuning.find_unused_parameters, False),
        }
        for key, (value, neutral) in changed.items():
            if not cls.has_buckets and value != neutral:
                raise UserError(
                    f"train.{key} = {json.dumps(value)}: must be {json.dumps(neutral)} "
                    "where train.sync names a strategy without DDP's buckets"
                )

    @contextmanager
    def part(self, shard: int, is_last: bool) -> Iterator[None]:
        """Around the forward and backward pass of one part of the step's batch."""
        yield

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Forward and backward inside leave local gradients and send nothing."""
        yield

    def reduce(self) -> None:
        """Synchronise what the backward passes of the step have not yet."""

    def optimizer(
        self, kind: type[torch.optim.Optimizer], learning_rate: float
    ) -> torch.optim.Optimizer:
        """The optimizer, all but the learning rate as torch has it."""
        # every optimizer's own arguments are named, the base class's are not
        make: Any = kind
        made: torch.optim.Optimizer = make(self.model.parameters(), lr=learning_rate)
        return made

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """What ``optimizer`` keeps of each parameter, by ``NAME/KEY``: whole tensors.
        Call it on all ranks; only rank 0's answer counts.
        """
        return {
            f"{name}/{key}": whole(value)
            for name, parameter in self.model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def finish(self) -> None:
        """Bring the ranks to one state after the last step; call it on all of them."""

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state of the unwrapped model; call it on all ranks."""
        return dict(self.model.state_dict())

    def traffic(self) -> Traffic:
        """What the last step should have handed to torch's collectives; without what
        buffers take.
        """
        return {}

    def logged(self) -> dict[str, float]:
        """The times of the last step as torch's own log has them, in milliseconds;
        empty where there is none. It is called while the clock does not run.
        """
        return {}

    def close(self) -> None:
        """Free what the process group does not; call it on all ranks."""

    @staticmethod
    def reference(gradients: Sequence[Tensor]) -> Tensor:
        """What becomes of one bucket, in one process: flat gradients of each shard in,
        already divided if the strategy averages; the synchronised bucket out.
        """
        return ring_sum(gradients)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def num_bytes(parameters: Iterable[Tensor]) -> int:
    """Of all of them together."""
    return sum(parameter.nbytes for parameter in parameters)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all of it where ranks hold a part each: call it on all."""
    gather = getattr(tensor, "full_tensor", None)
    return (tensor if gather is None else gather()).detach()


def timeout_s(group: dist.ProcessGroup | None) -> float:
    """The limit of every wait in ``group``."""
    backend = (group or world())._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def world() -> dist.ProcessGroup:
    """The process group of all ranks."""
    group = dist.group.WORLD
    assert group is not None
    return group


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Rank 0's values everywhere."""
    for tensor in tensors:
        # gloo writes without gaps, however the tensor lies in memory
        dense = tensor.detach().contiguous()
        dist.broadcast(dense, group=group, group_src=0)
        if dense.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(dense)
