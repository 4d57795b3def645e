"""Base class of strategies: methods that the training loop calls in order."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.ring import ring_sum
from minitrain.comm.torch_private import import_compiler
from minitrain.sync.guarantees import Guarantees, Tuning

# (calls, bytes of one rank's payload) by operation in one step
Traffic = dict[str, tuple[int, int]]


@dataclass
class BucketEvent:
    """Reduction of one bucket of gradients in a step. ``called_ns`` and ``done_ns``:
    start and end (``perf_counter_ns``; 0 until it ends). In a hook of DDP on a GPU,
    which only enqueues work, ``done_ns`` is None.
    """

    parameters: tuple[str, ...]
    num_bytes: int
    called_ns: int | None
    done_ns: int | None = 0


@dataclass
class SyncTrace:
    """Buckets of the current step, in the order in which they became complete.
    ``computed_ns`` is the time of the last gradient, ``optimizer_ns`` the duration of
    communication in the optimizer's step. ``hosts``: the ranks on each host, set by
    strategies that first reduce inside each host; not cleared between steps.
    """

    events: list[BucketEvent] = field(default_factory=list)
    computed_ns: int | None = None
    optimizer_ns: int | None = None
    hosts: list[list[int]] | None = None


class Strategy:
    """The plain module without synchronization; the base class of all strategies.

    A step is :meth:`begin`, one or more :meth:`micro_step`, each with a forward pass
    (through ``module``) and a backward pass, then :meth:`reduce`. A subclass
    initializes itself in :meth:`set_up`. Gradients are summed in :meth:`reduce` if the
    class derives from Flat; with DDP or FSDP in backward, and ``reduce`` does nothing.

    ``group``: ranks to synchronize; None for all. ``timed``: record buckets and their
    times in ``trace``.

    Attributes:
        has_account: True if a backward pass without communication is possible, which
            is timed to separate computation from communication.
        holds_a_part: True if ranks have different state, such as shards, so that a run
            cannot resume at another world size.
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
        import_compiler()
        self.set_up()

    def set_up(self) -> None:
        """Hook: wrap the model, and copy rank 0's weights to all ranks. Collective."""

    @property
    def divisor(self) -> int:
        """Number by which the sum of the ranks' gradients is divided."""
        return self.world_size if self.guarantees.averages else 1

    def begin(self) -> None:
        """Begin a step, and discard an unfinished one. Collective."""
        self.trace.events.clear()
        self.trace.computed_ns = self.trace.optimizer_ns = None

    def micro_step(self, shard: int, is_last: bool) -> AbstractContextManager[None]:
        """Return a context for both passes of a micro-batch, which is from ``shard`` of
        the batch. ``is_last``: the micro-batch is this rank's last in the step.
        """
        return nullcontext()

    def no_sync(self) -> AbstractContextManager[None]:
        """Context manager: passes in the body do not synchronize gradients."""
        return nullcontext()

    def reduce(self) -> None:
        """Synchronize all gradients that the backward passes have not synchronized.
        Collective. Raises UserError if a gradient that the strategy needs is missing.
        """

    def optimizer(
        self, kind: Callable[..., torch.optim.Optimizer], learning_rate: float
    ) -> torch.optim.Optimizer:
        """Return this rank's optimizer of class ``kind``, with torch's defaults."""
        return kind(self.model.parameters(), lr=learning_rate)

    def agree_on_overflow(self, found: Tensor) -> None:
        """Set ``found`` (1,), an overflow flag (not 0 if a gradient of this rank's
        optimizer is not finite), to the maximum over ranks. Collective. By default all
        optimizers step the same gradients, so ``found`` is equal and nothing is done.
        """

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Return the tensors in the state of ``optimizer``, such as Adam's moments, by
        ``PARAMETER/KEY`` and unsharded; complete only on rank 0. Collective.
        """
        return {
            f"{name}/{key}": whole(value)
            for name, parameter in self.model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return this rank's state of ``optimizer``, for a checkpoint of this rank."""
        return optimizer.state_dict()

    def restore_optimizer(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Load ``state``, as :meth:`optimizer_state` returns it, into ``optimizer``."""
        optimizer.load_state_dict(state)

    def kept(self) -> dict[str, Any]:
        """Return the strategy's state for a checkpoint, if any: tensors, JSON types."""
        return {}

    def restore(self, kept: dict[str, Any]) -> None:
        """Load ``kept``, the state that :meth:`kept` returned on this rank."""

    def finish(self) -> None:
        """Synchronize buffers after the last step. Collective."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the full state dict of the unwrapped model, unsharded. Collective."""
        return dict(self.model.state_dict())

    def traffic(self) -> Traffic:
        """Return this rank's expected traffic in the last step, without buffers."""
        return {}

    def logged(self) -> dict[str, float]:
        """Return torch's own times of the last step in ms, by name; empty if none."""
        return {}

    def close(self) -> None:
        """Free resources that the process group does not free. Collective."""

    @staticmethod
    def reference(gradients: Sequence[Tensor]) -> Tensor:
        """Return the sum of one bucket (n,) in one process, for the replay; if the
        strategy promises ``replay``, with the same bits as between ranks. ``gradients``
        (not changed): a tensor (n,) per shard, already divided if the strategy
        averages.
        """
        return ring_sum(gradients)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def names_by_type(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Return the names of ``parameters``, a list for each dtype."""
    types = dict.fromkeys(p.dtype for p in parameters.values())
    return [[n for n, p in parameters.items() if p.dtype == of] for of in types]


def copy_buffers(model: nn.Module) -> list[Tensor]:
    """Return copies of all buffers in order, on their device."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def load_buffers(model: nn.Module, saved: Sequence[Tensor]) -> None:
    """Copy ``saved`` into the model's buffers; ValueError if their number differs."""
    for buffer, copy in zip(model.buffers(), saved, strict=True):
        buffer.detach().copy_(copy)


def num_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the total size of ``parameters`` in bytes."""
    return sum(parameter.nbytes for parameter in parameters)


def whole(tensor: Tensor) -> Tensor:
    """Return ``tensor``, detached, and gathered if it is sharded. Collective."""
    gather = getattr(tensor, "full_tensor", None)
    return (tensor if gather is None else gather()).detach()


def world() -> dist.ProcessGroup:
    """Return the process group of all ranks, which must exist."""
    group = dist.group.WORLD
    assert group is not None
    return group


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Copy ``tensors`` of rank 0 of ``group`` (None: all) to all ranks. Collective."""
    for tensor in tensors:
        # gloo ignores strides
        dense = tensor.detach().contiguous()
        dist.broadcast(dense, group=group, group_src=0)
        if dense.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(dense)
