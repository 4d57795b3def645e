"""The collective ledger: a count of the collectives of a step, and of their bytes.

Collectives are counted at torch's dispatcher, below every strategy, and compared with
what the strategy expects (:meth:`minitrain.sync.strategy.Strategy.traffic`).
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm.groups import distributed
from minitrain.comm.torch_private import TorchDispatchMode, collective_name
from minitrain.core.params import Params
from minitrain.data.cut import tensors_of
from minitrain.sync.strategy import Traffic
from minitrain.train.config import RunConfig, config_of
from minitrain.train.precision import Precision
from minitrain.train.rng import untouched_random_state
from minitrain.train.worker import Worker

# index of the argument whose bytes count, else 0: the larger side, as in nccl-tests
LARGER_SIDE = {"_reduce_scatter_base_": 1, "reduce_scatter_": 1}
NAMES = {
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
    "_reduce_scatter_base_": "reduce_scatter",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "recv_": "receive",
}


class CollectiveLedger(TorchDispatchMode):
    """Context manager that counts this rank's collectives, except barriers: ``traffic``
    maps an operation to its number of calls and payload bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.traffic: Traffic = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = collective_name(func)
        if name is not None and name != "barrier":
            payload = args[LARGER_SIDE.get(name, 0)]
            name = NAMES.get(name, name)
            calls, size = self.traffic.get(name, (0, 0))
            size += sum(tensor.nbytes for tensor in tensors_of(payload))
            self.traffic[name] = calls + 1, size
        return func(*args, **(kwargs or {}))


def forward_collectives(config: RunConfig) -> list[dict[str, Any]]:
    """Return the names of collectives that the unwrapped model and its loss function
    call in a forward pass, as a list of one row; empty if none. Collective.
    """
    rank, count = dist.get_rank(), config.num_shards(dist.get_world_size())
    batches = config.batches([rank], count)
    with untouched_random_state():
        model = config.start_model(rank)
        ledger, autocast = CollectiveLedger(), Precision(config.precision).autocast()
        # gradients stay enabled: a loss may compute one
        with autocast, ledger:
            batches.loss(model, batches.micro_batches(0)[0].inputs)
    names = sorted(ledger.traffic)
    return [{"kind": "collectives", "step": 0, "names": names}] if names else []


def count_step(
    params: Params, shards: Path, steps_before: int = 12
) -> tuple[Traffic, Traffic]:
    """Return the counted and the expected traffic of this rank in one training step;
    call it on every rank, without a process group. ``shards`` has a folder world-W.
    Train ``steps_before`` steps first: DDP fixes its buckets, PowerSGD starts.
    """
    torch.set_num_threads(params.train.threads_per_process)
    with distributed() as (_, world_size):
        folder = shards / f"world-{world_size}"
        worker = Worker(config_of(params, folder, world_size))
        worker.train(range(steps_before))
        with CollectiveLedger() as ledger:
            worker.train([steps_before])
        expected = worker.sync.traffic()
        worker.close()
    return ledger.traffic, expected
