"""The same training loop around DDP, written by hand and with two libraries.

All of them wrap the model in stock DistributedDataParallel over the existing process
group, and leave the arithmetic to torch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from accelerate import Accelerator
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from minitrain.bench.arms import WITHOUT_SYNC, Arm, Contestant
from minitrain.core.params import Params
from minitrain.sync.catalog import PLAIN

RAW, AGAIN = "raw DDP loop", "raw DDP loop again"
NO_SYNC = "no communication"
Wrapped = tuple[nn.Module, Optimizer, Callable[[Tensor], None]]


def by_hand(model: nn.Module, optimizer: Optimizer) -> Wrapped:
    return DistributedDataParallel(model), optimizer, Tensor.backward


def with_accelerate(model: nn.Module, optimizer: Optimizer) -> Wrapped:
    # uses torchrun's environment variables and the existing process group
    accelerator = Accelerator(cpu=True)
    return *accelerator.prepare(model, optimizer), accelerator.backward


def with_fabric(model: nn.Module, optimizer: Optimizer) -> Wrapped:
    devices = dist.get_world_size()
    fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp")
    # LOCAL_RANK is set, so it starts no processes and uses the existing group
    fabric.launch()
    return *fabric.setup(model, optimizer), fabric.backward


@dataclass(frozen=True)
class Peer(Arm):
    """Arm whose model and optimizer are wrapped by ``wrap``."""

    wrap: Callable[[nn.Module, Optimizer], Wrapped] = by_hand

    def enter(
        self, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> Contestant:
        return HandWritten(self, params, shards, group)


class HandWritten(Contestant):
    """Typical loop: forward, loss, backward, step, zero_grad."""

    def __init__(
        self, arm: Peer, params: Params, shards: Path, group: dist.ProcessGroup
    ) -> None:
        # the plain model, so that the library can wrap it
        super().__init__(arm, params.with_train(sync=PLAIN), shards, group)
        wrapped = arm.wrap(self.worker.model, self.worker.optimizer)
        self.wrapped, self.optimizer, self.backward = wrapped

    def train(self, steps: Iterable[int]) -> None:
        world_size = dist.get_world_size()
        for step in steps:
            (batch,) = self.worker.batches.micro_batches(step)
            loss = self.wrapped(**batch.inputs).loss
            # DDP averages over ranks, so scale to the mean over all real targets
            share = batch.num_targets * world_size / batch.global_targets
            self.backward(loss * share)
            self.optimizer.step()
            self.optimizer.zero_grad()


def arms_of(world_size: int) -> Iterator[Arm]:
    yield Arm(NO_SYNC, world_size, 1, WITHOUT_SYNC)
    yield Peer(RAW, world_size, 1)
    yield Arm("minitrain, ddp", world_size, 1, (("sync", "ddp"),))
    yield Peer("Accelerate", world_size, 1, wrap=with_accelerate)
    yield Peer("Lightning Fabric", world_size, 1, wrap=with_fabric)
    yield Peer(AGAIN, world_size, 1)
    yield Arm("minitrain, shm", world_size, 1, (("sync", "shm"),))
