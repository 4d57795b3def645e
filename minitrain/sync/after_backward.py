"""Explicit collectives after backward, without a wrapper or overlap."""

import time
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.core.errors import UserError
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import (
    BucketEvent,
    Strategy,
    Traffic,
    broadcast,
    names_by_type,
    num_bytes,
    trained,
)


class Flat(Strategy):
    """Strategy with an all-reduce of all gradients after backward, in one buffer per
    dtype. Subclasses override :meth:`sum_over_ranks` (the sum), :meth:`buckets`, or
    :meth:`reduce`, which calls both.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["flat"]

    def set_up(self) -> None:
        broadcast(self.model.state_dict().values(), self.group)
        self._trained = trained(self.model)

    def buckets(self) -> list[list[str]]:
        """Return lists of names of parameters, each reduced in one buffer: by default a
        list for each dtype.
        """
        return names_by_type(self._trained)

    def sum_over_ranks(self, flat: Tensor) -> None:
        """Replace ``flat`` (n,), the gradients of one bucket, by the sum over the
        ranks, in place. If the strategy averages, ``flat`` is already divided by the
        world size. Collective.
        """
        dist.all_reduce(flat, group=self.group)

    def begin(self) -> None:
        super().begin()
        # like DDP before the first forward pass of a step
        broadcast(self.model.buffers(), self.group)

    def reduce(self) -> None:
        self.trace.computed_ns = time.perf_counter_ns()
        for names in self.buckets():
            sizes = [self._trained[name].numel() for name in names]
            called = time.perf_counter_ns()
            flat = _flat([self._gradient(name) for name in names])
            if self.guarantees.averages:
                flat.mul_(1.0 / self.world_size)
            self.sum_over_ranks(flat)
            for name, part in zip(names, flat.split(sizes), strict=True):
                # a view with the gradient's own strides
                like, start = self._gradient(name), part.storage_offset()
                self._trained[name].grad = part.as_strided(
                    like.shape, like.stride(), start
                )
            done = time.perf_counter_ns()
            event = BucketEvent(tuple(names), flat.nbytes, called, done)
            self.trace.events.append(event)

    def traffic(self) -> Traffic:
        size = num_bytes(self._trained.values())
        return {"all_reduce": (len(self.buckets()), size)}

    def _gradient(self, name: str) -> Tensor:
        gradient = self._trained[name].grad
        if gradient is None:
            raise UserError(
                f"model: parameter {name} gets no gradient on a rank; only DDP can "
                "look for unused parameters"
            )
        return gradient

    def finish(self) -> None:
        broadcast(self.model.buffers(), self.group)


class PerParameter(Flat):
    """Strategy with one all-reduce per parameter: simple and slow."""

    def buckets(self) -> list[list[str]]:
        return [[name] for name in self._trained]


class ReduceScatter(Flat):
    """Reduce-scatter, then all-gather: the two halves of an all-reduce. Each rank sums
    one of W equal shares of the buffer, which is padded.
    """

    def sum_over_ranks(self, flat: Tensor) -> None:
        share = -(-flat.numel() // self.world_size)
        padded = flat.new_zeros(share * self.world_size)
        padded[: flat.numel()] = flat
        mine = flat.new_empty(share)
        # torch 2.13 renamed them
        new = hasattr(dist, "reduce_scatter_single")
        scatter = dist.reduce_scatter_single if new else dist.reduce_scatter_tensor
        gather = dist.all_gather_single if new else dist.all_gather_into_tensor
        scatter(mine, padded, group=self.group)
        gather(padded, mine, group=self.group)
        flat.copy_(padded[: flat.numel()])

    def traffic(self) -> Traffic:
        padded = 0
        for names in self.buckets():
            elements = sum(self._trained[name].numel() for name in names)
            share = -(-elements // self.world_size)
            size = self._trained[names[0]].element_size()
            padded += share * self.world_size * size
        sent = len(self.buckets()), padded
        return {"reduce_scatter": sent, "all_gather": sent}


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    # all elements (n,) in memory order; a view if there is one gradient
    flat = [gradient.as_strided((gradient.numel(),), (1,)) for gradient in gradients]
    return flat[0] if len(flat) == 1 else torch.cat(flat)
