"""DDP whose buckets travel in fewer bytes."""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from minitrain.core.errors import UserError
from minitrain.distributed.ring import ring_sum
from minitrain.sync.stock import Reduced, StockDDP
from minitrain.sync.strategy import Promise, Traffic, Tuning, num_bytes, trained, world

RANK_OF_APPROXIMATION = 2
# torch: from step 2 on at the earliest, since DDP rebuilds its buckets after step 0
FIRST_POWERSGD_STEP = 10


class Float16Compress(StockDDP):
    """Averaged and summed in float16: half the bytes, rounded at every hop."""

    dtype: ClassVar[torch.dtype] = torch.float16
    wire = dtype
    # rounding to 16 bits is far coarser than any tolerance of the ladder
    promises: ClassVar[frozenset[Promise]] = frozenset({"reduced_once", "replay"})

    def _needs_hook(self) -> bool:
        return True

    def exchange(self, bucket: GradBucket) -> Reduced:
        buffer = bucket.buffer()
        small = buffer.mul_(self._factor).to(self.dtype)
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
    """The same in bfloat16: less precise, with the range of float32."""

    dtype = torch.bfloat16
    wire = dtype


class PowerSGD(StockDDP):
    """Matrices as products of low rank, with error feedback (Vogels et al. 2019).

    Its gradients are approximations, so it is judged by the loss that it reaches.
    """

    promises = frozenset({"reduced_once", "loss"})
    # Torch's hook starts its second collective in a callback of the first. With two
    # buckets under way ranks may start them in different orders: gloo aborts.
    overlaps: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        tuning: Tuning,
        *,
        group: dist.ProcessGroup | None = None,
        timed: bool = True,
    ) -> None:
        # slow to import, and only this strategy needs it
        from torch.distributed.algorithms.ddp_comm_hooks import (
            powerSGD_hook as powersgd,
        )

        self._hook = powersgd.powerSGD_hook
        self._state = powersgd.PowerSGDState(
            group or world(),
            matrix_approximation_rank=RANK_OF_APPROXIMATION,
            start_powerSGD_iter=FIRST_POWERSGD_STEP,
        )
        super().__init__(model, tuning, group=group, timed=timed)

    @classmethod
    def require(cls, tuning: Tuning, world_size: int, precision: str) -> None:
        super().require(tuning, world_size, precision)
        if precision == "fp16":
            raise UserError(
                "train.precision = 'fp16': must be float32 or bf16 with PowerSGD, "
                "which carries an overflow on in its error memory"
            )

    def _needs_hook(self) -> bool:
        return True

    def exchange(self, bucket: GradBucket) -> Reduced:
        return self._hook(self._state, bucket)

    def traffic(self) -> Traffic:
        """The mean over the steps so far, as torch's hook counts it."""
        parameters = trained(self.model).values()
        elements = sum(p.numel() for p in parameters)
        rate, *_ = self._state.compression_stats()
        size = num_bytes(parameters) // elements
        return {"all_reduce": (0, round(elements / rate) * size)}
