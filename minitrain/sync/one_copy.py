"""One copy of the parameters per host, each parameter stepped by the rank that owns it.

All ranks map one memory: the parameters, and a row of gradients for each rank. A rank
writes gradients into its own row, except at parameters that it owns, where it writes
the sums over all ranks. A step has three barriers: after the rows are written, after
the sums are written, and after the parameters are stepped. Nothing is copied back.
"""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.groups import group_timeout_s
from minitrain.comm.shared_memory import ALIGNMENT
from minitrain.comm.sockets import meet
from minitrain.comm.tree import tree_sum
from minitrain.core.errors import UserError
from minitrain.sync.after_backward import Flat
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.sharded import gather_moments
from minitrain.sync.strategy import BucketEvent, Traffic, num_bytes

# overhead of the optimizer's calls for one parameter, as bytes, to balance the ranks
CALLS_IN_BYTES = 1 << 16


class OneCopy(Flat):
    """Strategy with one copy of parameters and optimizer state per host instead of per
    rank. Sums in :meth:`reduce`, in a tree like ``shm``; ``sum_over_ranks`` is unused.
    With two ranks the bits equal stock DDP's.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["one_copy"]
    holds_a_part: ClassVar[bool] = True

    def set_up(self) -> None:
        super().set_up()
        _refuse_aliases(self.model)
        named, trained = dict(self.model.named_parameters()), self._trained
        owners = _owners(trained, self.world_size)
        self._own = [name for name in trained if owners[name] == self.rank]
        sizes = (-(-p.nbytes // ALIGNMENT) * ALIGNMENT for p in named.values())
        *starts, size = accumulate(sizes, initial=0)
        places = dict(zip(named, starts, strict=True))
        whole_size = size * (1 + self.world_size)
        self._links, memory = meet(self.group, whole_size, group_timeout_s())

        def view(name: str, line: int) -> Tensor:
            like, place = named[name], line * size + places[name]
            # a separate storage, because torch.save writes whole storages
            flat = torch.frombuffer(
                memory, dtype=like.dtype, count=like.numel(), offset=place
            )
            strides = torch.empty_like(like, device="meta").stride()
            return flat.as_strided(like.shape, strides)

        lines = range(1, 1 + self.world_size)
        self._terms = {name: [view(name, line) for line in lines] for name in self._own}
        self._row = {name: view(name, 1 + self.rank) for name in trained}
        self._sums = {name: view(name, 1 + owners[name]) for name in trained}
        for name, parameter in named.items():
            shared = view(name, 0)
            if owners.get(name, 0) == self.rank:
                shared.copy_(parameter.detach())
            parameter.data = shared
        self._links.barrier(b"start")
        self._is_last = False
        self._written: set[str] = set()
        # a weak reference, because the garbage collector cannot see a parameter's hooks
        alive = weakref.proxy(self)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(
                partial(OneCopy._on_gradient, alive, name)
            )
            for name, parameter in trained.items()
        ]

    def begin(self) -> None:
        super().begin()
        self._agreed: Traffic = {}
        self._written.clear()

    def micro_step(self, shard: int, is_last: bool) -> AbstractContextManager[None]:
        self._is_last = is_last
        return super().micro_step(shard, is_last)

    def _on_gradient(self, name: str, parameter: Tensor) -> None:
        # write it while it is in cache, and before other gradients are allocated
        if self._is_last and name in self._written:
            raise UserError(
                f"train.sync = 'one_copy': parameter {name} gets several gradients in "
                "one pass (reentrant checkpointing?); use flat or shm"
            )
        if self._is_last:
            self._write(name)

    def _write(self, name: str) -> None:
        gradient = self._gradient(name)
        self._written.add(name)
        # only the owner needs its own gradient, which it adds in place
        there = gradient if name in self._terms else self._row[name]
        torch.mul(gradient, 1.0 / self.world_size, out=there)
        self._trained[name].grad = there

    def reduce(self) -> None:
        self._is_last = False
        # parameters that got their last gradient in an earlier micro-step
        for name in [n for n in self._trained if n not in self._written]:
            self._write(name)
        self.trace.computed_ns = called = time.perf_counter_ns()
        self._links.barrier(b"rows")
        for name in self._own:
            terms = [*self._terms[name]]
            terms[self.rank] = self._gradient(name)
            tree_sum(terms, out=self._sums[name])
        self._links.barrier(b"sums")
        for name, parameter in self._trained.items():
            parameter.grad = self._sums[name]
        done = time.perf_counter_ns()
        for names in self.buckets():
            size = num_bytes(self._trained[name] for name in names)
            self.trace.events.append(BucketEvent(tuple(names), size, called, done))

    def agree_on_overflow(self, found: Tensor) -> None:
        self._agreed = {"all_reduce": (1, found.nbytes)}
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)

    def optimizer(
        self, kind: Callable[..., torch.optim.Optimizer], learning_rate: float
    ) -> torch.optim.Optimizer:
        own = [self._trained[name] for name in self._own]
        optimizer = kind(own, lr=learning_rate)
        alive = weakref.proxy(self)
        optimizer.register_step_post_hook(lambda *_: alive.on_step())
        return optimizer

    def on_step(self) -> None:
        """Wait until all ranks have stepped their parameters (the optimizer's hook)."""
        start = time.perf_counter_ns()
        self._links.barrier(b"step")
        self.trace.optimizer_ns = time.perf_counter_ns() - start

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return gather_moments(self, super().moments(optimizer))

    def traffic(self) -> Traffic:
        return self._agreed

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._links.close()

    @staticmethod
    def reference(gradients: Sequence[Tensor]) -> Tensor:
        return tree_sum(gradients)


def _refuse_aliases(model: nn.Module) -> None:
    # a tensor that moves to the memory no longer changes with one that stays
    parameters = dict(model.named_parameters())
    tensors = [*parameters.items(), *model.named_buffers()]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, n) for n, t in tensors)
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end and (name in parameters or other in parameters):
            raise UserError(
                f"train.sync = 'one_copy': {other} and {name} share memory: they must "
                "be one Parameter, or separate tensors; else use shm"
            )


def _owners(parameters: Mapping[str, Tensor], world_size: int) -> dict[str, int]:
    # the largest first, each to the rank with the smallest load
    loads, owners = [0] * world_size, {}
    for name in sorted(parameters, key=lambda name: -parameters[name].nbytes):
        owner = owners[name] = loads.index(min(loads))
        loads[owner] += CALLS_IN_BYTES + parameters[name].nbytes
    return owners
