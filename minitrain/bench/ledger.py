"""The collective ledger: what a step really hands to torch's collectives.

Counted where torch dispatches them, below every strategy, so that what a strategy
expects of itself (:meth:`minitrain.sync.strategy.Strategy.traffic`) can be held against
it.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.core.params import Params
from minitrain.distributed.groups import distributed
from minitrain.distributed.torch_private import TorchDispatchMode, collective_name
from minitrain.sync.strategy import Traffic
from minitrain.train.config import config_of
from minitrain.train.loop import train
from minitrain.train.worker import Worker

# which argument holds the payload, as nccl-tests counts it: the larger side
LARGER_SIDE = {"_reduce_scatter_base_": 1, "reduce_scatter_": 1}
NAMES = {
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
    "_reduce_scatter_base_": "reduce_scatter",
    "_allgather_base_": "all_gather",
    "send": "send",
    "recv_": "receive",
}


class CollectiveLedger(TorchDispatchMode):
    """Counts within its context: ``traffic`` has calls and bytes by operation."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    @property
    def traffic(self) -> Traffic:
        """(calls, bytes) by operation; the bytes are those of one rank's payload."""
        return {name: (calls, size) for name, (calls, size) in self._counts.items()}

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
            count = self._counts[NAMES.get(name, name)]
            count[0] += 1
            count[1] += sum(tensor.nbytes for tensor in _tensors(payload))
        return func(*args, **(kwargs or {}))


def _tensors(payload: Any) -> Iterator[Tensor]:
    if isinstance(payload, torch.Tensor):
        yield payload
    elif isinstance(payload, list | tuple):
        for one in payload:
            yield from _tensors(one)


def count_step(
    params: Params, shards: Path, steps_before: int = 12
) -> tuple[Traffic, Traffic]:
    """Counted and expected traffic of one training step; call in every rank's process.

    ``shards`` holds a folder world-W. ``steps_before`` are enough for DDP to settle its
    buckets, and for PowerSGD to begin. Traffic is (calls, bytes) by operation, of this
    rank.
    """
    torch.set_num_threads(params.train.threads_per_process)
    with distributed() as (_, world_size):
        folder = shards / f"world-{world_size}"
        worker = Worker(config_of(params, folder, world_size))
        train(worker, range(steps_before))
        with CollectiveLedger() as ledger:
            train(worker, [steps_before])
        expected = worker.sync.traffic()
        worker.close()
    return ledger.traffic, expected
