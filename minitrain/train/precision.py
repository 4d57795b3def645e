"""Mixed precision: autocast and loss scaling. Parameters keep their types."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.torch_private import overflows_of
from minitrain.core.params import PrecisionName

SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Precision named by ``train.precision``: float32 leaves the types of the model,
    bf16 and fp16 use ``torch.autocast``. If ``scales`` is true, fp16 scales the loss
    (arXiv 1710.03740, ``torch.amp.GradScaler``): after an overflow of synchronized
    gradients all ranks skip the step and halve the scale. Else the loss is not scaled.
    """

    def __init__(
        self, name: PrecisionName, device_type: str = "cpu", *, scales: bool = True
    ) -> None:
        self._device_type = device_type
        self._dtype = SIXTEEN_BITS.get(name)
        enabled = scales and name == "fp16"
        self.scaler = torch.amp.GradScaler(device_type, enabled=enabled)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context for the forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def unscale(
        self,
        optimizer: torch.optim.Optimizer,
        agree: Callable[[Tensor], None] = lambda found: None,
    ) -> None:
        """Unscale the synchronized gradients in fp16. ``agree(found)`` must make
        ``found`` (1,), not 0 if a gradient overflowed, equal on all ranks, in place.
        """
        self.scaler.unscale_(optimizer)
        if self.scaler.is_enabled():
            for found in overflows_of(self.scaler, optimizer):
                agree(found)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer unless a gradient overflowed, then update the scale."""
        self.scaler.step(optimizer)
        self.scaler.update()
