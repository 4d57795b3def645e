"""Sharded strategies: ZeRO-1 (optimizer state) and FSDP (parameters too)."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.torch_private import around_parameter_broadcast, own_part_of
from minitrain.core.errors import UserError
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import (
    Strategy,
    Traffic,
    broadcast,
    num_bytes,
    trained,
    whole,
    world,
)


class ZeRO1(StockDDP):
    """DDP with the optimizer state sharded over the ranks, with the bits of DDP: ZeRO-1
    (Rajbhandari et al. 2020, arXiv:1910.02054), by torch's ``ZeroRedundancyOptimizer``.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["zero1"]
    holds_a_part: ClassVar[bool] = True

    def optimizer(
        self, kind: Callable[..., torch.optim.Optimizer], learning_rate: float
    ) -> torch.optim.Optimizer:
        # slow to import, and only this strategy needs it
        from torch.distributed.optim import ZeroRedundancyOptimizer

        # any factory of an optimizer works, but the annotation requires a class
        optimizer: Any = ZeroRedundancyOptimizer(
            self.model.parameters(),
            optimizer_class=cast(Any, kind),
            process_group=self.group,
            lr=learning_rate,
        )
        around_parameter_broadcast(optimizer, self._timed)
        return optimizer

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return super().optimizer_state(own_part_of(optimizer))

    def restore_optimizer(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        super().restore_optimizer(own_part_of(optimizer), state)

    def _timed(self, broadcast: Callable[[], None]) -> None:
        start = time.perf_counter_ns()
        broadcast()
        self.trace.optimizer_ns = time.perf_counter_ns() - start

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return gather_moments(self, super().moments(own_part_of(optimizer)))

    def traffic(self) -> Traffic:
        parameters = list(trained(self.model).values())
        sent = (len(parameters), num_bytes(parameters))
        return {**super().traffic(), "broadcast": sent}


class FSDP(Strategy):
    """Parameters, gradients and optimizer state sharded over the ranks by torch's
    ``fully_shard``. Its collectives are part of both passes, so its step time cannot be
    split into computation and communication.
    """

    guarantees: ClassVar[Guarantees] = GUARANTEES["fsdp"]
    holds_a_part: ClassVar[bool] = True
    has_account = False

    def set_up(self) -> None:
        # slow to import, and only this strategy needs it
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        model = self.model
        broadcast(model.state_dict().values(), self.group)
        device = next(model.parameters()).device.type
        mesh = DeviceMesh.from_group(self.group or world(), device)
        # a layer may occur several times
        layers = list(dict.fromkeys(_layers(model)))
        self._layer_bytes = [self._padded_bytes(layer) for layer in layers]
        self._root_bytes = self._padded_bytes(model) - sum(self._layer_bytes)
        for module in (*layers, model):
            fully_shard(module, mesh=mesh)

    def _padded_bytes(self, module: nn.Module) -> int:
        # each parameter is cut along its first dimension, into equal shares
        for name, parameter in module.named_parameters():
            if parameter.dim() == 0:
                raise UserError(f"model: {name} has no dimension that FSDP could cut")
        world_size = self.world_size
        shares = ((-(-len(p) // world_size), p) for p in module.parameters())
        return sum(rows * world_size * p[:1].nbytes for rows, p in shares)

    def traffic(self) -> Traffic:
        # layers are gathered for forward and for backward, other parameters once
        if self.world_size == 1:
            return {}
        groups, layers = len(self._layer_bytes) + 1, sum(self._layer_bytes)
        gathered = self._root_bytes + 2 * layers
        return {
            "all_gather": (2 * groups - 1, gathered),
            "reduce_scatter": (groups, self._root_bytes + layers),
        }

    def begin(self) -> None:
        super().begin()
        broadcast(self.model.buffers(), self.group)

    def micro_step(self, shard: int, is_last: bool) -> AbstractContextManager[None]:
        # fully_shard gives the model the methods of an FSDPModule
        model: Any = self.model
        model.set_requires_gradient_sync(is_last)
        return super().micro_step(shard, is_last)

    def restore_optimizer(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        parts = {
            index: {key: _part_like(parameters[index], own[key]) for key in own}
            for index, own in state["state"].items()
        }
        super().restore_optimizer(optimizer, {**state, "state": parts})

    def finish(self) -> None:
        broadcast(self.model.buffers(), self.group)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: whole(t) for name, t in self.model.state_dict().items()}


def gather_moments(sync: Strategy, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the moments (see :meth:`Strategy.moments`) of all ranks on rank 0, in the
    order of the model's parameters; empty elsewhere. ``own``: this rank's. Collective.
    """
    parts: list[Any] = [None] * sync.world_size
    everyone = parts if sync.rank == 0 else None
    dist.gather_object(own, everyone, group=sync.group, group_dst=0)
    found = {key: value for part in filter(None, parts) for key, value in part.items()}
    places = {name: i for i, (name, _) in enumerate(sync.model.named_parameters())}
    names = sorted(found, key=lambda key: places[key.rpartition("/")[0]])
    return {name: found[name] for name in names}


def _part_like(parameter: Any, part: Any) -> Any:
    # the optimizer's count of steps is not sharded
    from torch.distributed.tensor import DTensor

    if not isinstance(part, Tensor) or part.shape != parameter.to_local().shape:
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _layers(model: nn.Module, inside: bool = False) -> Iterator[nn.Module]:
    # members of the outermost ModuleLists; containers have no forward pass to shard
    for child in model.children():
        is_list = isinstance(child, nn.ModuleList)
        if is_list or isinstance(child, nn.ModuleDict):
            yield from _layers(child, inside or is_list)
        elif inside:
            yield child
        else:
            yield from _layers(child)
