"""The base of all strategies: methods that the training loop calls in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.ring import ring_sum
from minitrain.sync.guarantees import Guarantees, Tuning

# (calls, bytes of one rank's payload) by operation, in one step
Traffic = dict[str, tuple[int, int]]


@dataclass
class BucketEvent:
    """One bucket of one step. Times are ``perf_counter_ns`` readings (``done_ns``: 0
    until it is reduced), None on a GPU, where the hook only enqueues work.
    """

    parameters: tuple[str, ...]
    num_bytes: int
    called_ns: int | None
    done_ns: int | None = 0


@dataclass
class SyncTrace:
    """The buckets of the current step, in the order in which they were handed over.
    ``computed_ns`` is when the last gradient was there, ``optimizer_ns`` what the
    optimizer's step spent on communication. ``hosts``, the ranks on each host, stands
    from step to step, for a strategy that adds inside of them first.
    """

    events: list[BucketEvent] = field(default_factory=list)
    computed_ns: int | None = None
    optimizer_ns: int | None = None
    hosts: list[list[int]] | None = None


class Strategy:
    """The plain module and no synchronization; the base of all that synchronize.

    ``module`` is called for the forward pass. A step is :meth:`begin`, one or more
    :meth:`micro_step`, each a forward and a backward pass, then :meth:`reduce`, which
    leaves the synchronized gradients. ``trace`` has the buckets, if ``timed``.
    ``has_account``: a backward pass can be made without communication.
    ``holds_a_part``: what a rank keeps is of no use to another number of ranks. A
    subclass sets itself up in :meth:`set_up`.
    """

    guarantees: ClassVar[Guarantees] = Guarantees()
    has_account: bool = True
    holds_a_part: ClassVar[bool] = False

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
        self.rank = dist.get_rank(group) if dist.is_initialized() else 0
        self.set_up()

    def set_up(self) -> None:
        """Wrap the model, and bring all ranks to rank 0's start. Collective."""

    @property
    def divisor(self) -> int:
        """The number by which the sum of the ranks' gradients is divided."""
        return self.world_size if self.guarantees.averages else 1

    def begin(self) -> None:
        """Begin a step, and forget one that was given up. Collective."""
        self.trace.events.clear()
        self.trace.computed_ns = self.trace.optimizer_ns = None

    def micro_step(self, shard: int, is_last: bool) -> AbstractContextManager[None]:
        """Wrap the passes of a micro-batch of ``shard``, the last of a step or not."""
        return nullcontext()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let forward and backward inside leave local gradients and send nothing."""
        yield

    def reduce(self) -> None:
        """Synchronize what the backward passes have not yet. Collective. Raises
        UserError for a parameter without gradient, where that cannot be reduced.
        """

    def optimizer(
        self, kind: Callable[..., torch.optim.Optimizer], learning_rate: float
    ) -> torch.optim.Optimizer:
        """Make the optimizer of this rank, all but the learning rate as in torch."""
        return kind(self.model.parameters(), lr=learning_rate)

    def agree_on_overflow(self, found: Tensor) -> None:
        """Set ``found`` (1,), not 0 where a gradient that this rank steps overflowed,
        to the same value on all ranks. Collective. By default all step all gradients.
        """

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Return what ``optimizer`` keeps of each parameter, by ``NAME/KEY``: whole
        tensors, on rank 0. Collective.
        """
        return {
            f"{name}/{key}": whole(value)
            for name, parameter in self.model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return what ``optimizer`` keeps on this rank, as its ``state_dict`` does."""
        return optimizer.state_dict()

    def restore_optimizer(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Let ``optimizer`` go on from what :meth:`optimizer_state` gave."""
        optimizer.load_state_dict(state)

    def kept(self) -> dict[str, Any]:
        """Return what the strategy keeps between steps, in tensors and JSON types."""
        return {}

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on from what :meth:`kept` gave on this rank."""

    def finish(self) -> None:
        """Bring the ranks to one state after the last step. Collective."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state of the unwrapped model. Collective."""
        return dict(self.model.state_dict())

    def traffic(self) -> Traffic:
        """Return what the last step should have sent by torch, but for buffers."""
        return {}

    def logged(self) -> dict[str, float]:
        """Return torch's own times of the last step in milliseconds, if any."""
        return {}

    def close(self) -> None:
        """Free what the process group does not. Collective."""

    @staticmethod
    def reference(gradients: Sequence[Tensor]) -> Tensor:
        """Return one bucket (n,) as it is synchronized, from one flat tensor (n,) for
        each shard, already divided if the strategy averages. They stay as they are. To
        the bit where the strategy promises ``replay``.
        """
        return ring_sum(gradients)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are to have a gradient, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def copy_buffers(model: nn.Module) -> list[Tensor]:
    """Return copies of all buffers on their device, in their order."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def load_buffers(model: nn.Module, saved: Sequence[Tensor]) -> None:
    """Put copies back into the model, in place; ValueError for another count."""
    for buffer, copy in zip(model.buffers(), saved, strict=True):
        buffer.detach().copy_(copy)


def num_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of all of them together."""
    return sum(parameter.nbytes for parameter in parameters)


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor, or all of it where ranks hold a part each. Collective."""
    gather = getattr(tensor, "full_tensor", None)
    return (tensor if gather is None else gather()).detach()


def world() -> dist.ProcessGroup:
    """Return the process group of all ranks."""
    group = dist.group.WORLD
    assert group is not None
    return group


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Set ``tensors`` to rank 0's values, in place. Collective."""
    for tensor in tensors:
        # gloo writes without gaps, however the tensor lies in memory
        dense = tensor.detach().contiguous()
        dist.broadcast(dense, group=group, group_src=0)
        if dense.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(dense)
