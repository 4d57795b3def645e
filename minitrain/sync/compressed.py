"""Strategies that compress DDP's gradient buckets."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.ring import ring_sum
from minitrain.comm.torch_private import GradBucket
from minitrain.core.errors import UserError
from minitrain.sync.ddp_buckets import Reduced, StockDDP
from minitrain.sync.guarantees import GUARANTEES, Guarantees
from minitrain.sync.strategy import Traffic, num_bytes, trained, world

RANK_OF_APPROXIMATION = 2
# torch requires 2 or more, because DDP rebuilds its buckets after step 0
FIRST_POWERSGD_STEP = 10


class Float16Compress(StockDDP):
    """DDP that averages gradients in float16: half the bytes, rounded at every hop."""

    guarantees: ClassVar[Guarantees] = GUARANTEES["fp16_compress"]
    dtype: ClassVar[torch.dtype] = torch.float16

    def sum_over_ranks(self, bucket: GradBucket) -> Reduced:
        buffer = bucket.buffer()
        small = buffer.mul_(self.factor).to(self.dtype)
        work = dist.all_reduce(small, group=self.group, async_op=True)
        return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))

    def traffic(self) -> Traffic:
        elements = sum(p.numel() for p in trained(self.model).values())
        return {"all_reduce": (len(self.trace.events), elements * self.dtype.itemsize)}

    @classmethod
    def reference(cls, gradients: Sequence[Tensor]) -> Tensor:
        whole = ring_sum([gradient.to(cls.dtype) for gradient in gradients])
        return whole.to(gradients[0].dtype)


class BFloat16Compress(Float16Compress):
    """DDP that averages gradients in bfloat16: coarser, with the range of float32."""

    guarantees = GUARANTEES["bf16_compress"]
    dtype = torch.bfloat16


class PowerSGD(StockDDP):
    """DDP with low-rank gradients and error feedback (Vogels et al. 2019,
    arXiv:1905.13727), by torch's ``powerSGD_hook``. It promises no value but the loss.
    """

    guarantees = GUARANTEES["powersgd"]
    # each rank has its own error memory
    holds_a_part: ClassVar[bool] = True
    # Torch's hook starts its second collective in a callback of the first. With two
    # buckets in flight ranks may start them in different orders, and gloo aborts.
    overlaps: ClassVar[bool] = False

    def set_up(self) -> None:
        # slow to import, and only this strategy needs it
        from torch.distributed.algorithms.ddp_comm_hooks import (
            powerSGD_hook as powersgd,
        )

        for name, parameter in trained(self.model).items():
            if parameter.dim() == 0:
                raise UserError(f"model: {name} has no dimension, as PowerSGD needs")
        self._hook = powersgd.powerSGD_hook
        self._state = powersgd.PowerSGDState(
            self.group or world(),
            matrix_approximation_rank=RANK_OF_APPROXIMATION,
            start_powerSGD_iter=FIRST_POWERSGD_STEP,
        )
        super().set_up()

    def sum_over_ranks(self, bucket: GradBucket) -> Reduced:
        return self._hook(self._state, bucket)

    def kept(self) -> dict[str, Any]:
        rng: Any = self._state.rng.get_state()
        name, keys, *rest = rng
        slots = {*self._state.__slots__} - {"process_group", "rng"}
        kept = {slot: getattr(self._state, slot) for slot in slots}
        return {**kept, "rng": [name, keys.tolist(), *rest]}

    def restore(self, kept: dict[str, Any]) -> None:
        name, keys, *rest = kept["rng"]
        self._state.rng.set_state((name, np.array(keys, np.uint32), *rest))
        for slot in kept.keys() - {"rng"}:
            setattr(self._state, slot, kept[slot])

    def traffic(self) -> Traffic:
        # torch's hook knows only the mean rate over the steps so far
        parameters = trained(self.model).values()
        elements = sum(p.numel() for p in parameters)
        rate, *_ = self._state.compression_stats()
        size = num_bytes(parameters) // elements
        return {"all_reduce": (0, round(elements / rate) * size)}
