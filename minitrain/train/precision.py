"""Numbers of fewer bits in the forward and backward pass; parameters stay as they are.

One object per process: it wraps the forward pass and takes the optimizer's step.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Name = Literal["float32", "bf16", "fp16"]
PRECISIONS: tuple[Name, ...] = get_args(Name)


class Precision:
    """All in the precision that the model has."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Around the forward pass."""
        return nullcontext()

    def scale(self, loss: Tensor) -> Tensor:
        """What to call ``backward`` on."""
        return loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring synchronized gradients to the scale of the loss."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's step, unless a gradient has overflowed."""
        optimizer.step()

    def state(self) -> dict[str, Any]:
        """What must be alike on all ranks, in plain numbers."""
        return {}


class BFloat16(Precision):
    """Autocast to bfloat16, which has the range of float32 and needs no scaling."""

    def __init__(self, device_type: str = "cpu") -> None:
        self._device_type = device_type

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device_type, torch.bfloat16)


class Float16(Precision):
    """Autocast to float16 with a scaled loss (``torch.amp.GradScaler``).

    Where the synchronized gradients hold an infinity or a NaN, the step is left out
    and the scale halved. Synchronized gradients are alike on all ranks, so all of them
    leave it out.
    """

    def __init__(self, device_type: str = "cpu") -> None:
        self._device_type = device_type
        self.scaler = torch.amp.GradScaler(device_type)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device_type, torch.float16)

    def scale(self, loss: Tensor) -> Tensor:
        scaled = self.scaler.scale(loss)
        assert isinstance(scaled, Tensor)
        return scaled

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()

    def state(self) -> dict[str, Any]:
        return dict(self.scaler.state_dict())


def make_precision(name: Name, device_type: str = "cpu") -> Precision:
    """The precision that ``train.precision`` names."""
    if name == "float32":
        return Precision()
    return BFloat16(device_type) if name == "bf16" else Float16(device_type)
