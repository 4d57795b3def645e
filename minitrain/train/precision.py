"""Mixed precision: autocast and loss scaling. Parameters stay as they are."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from minitrain.comm.torch_private import overflows_of

Name = Literal["float32", "bf16", "fp16"]
PRECISIONS: tuple[Name, ...] = get_args(Name)
SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The precision that ``train.precision`` names: ``torch.autocast`` to 16 bits, or
    for float32 that of the model. fp16 scales its loss (arXiv 1710.03740,
    ``torch.amp.GradScaler``) if ``scales``. After an overflow of synchronized
    gradients all ranks leave out the step and halve the scale.
    """

    def __init__(
        self, name: Name, device_type: str = "cpu", *, scales: bool = True
    ) -> None:
        self._device_type = device_type
        self._dtype = SIXTEEN_BITS.get(name)
        # a scaler that is not enabled hands everything on as it is
        enabled = scales and name == "fp16"
        self._scaler = torch.amp.GradScaler(device_type, enabled=enabled)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a new context for the forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def scale(self, loss: Tensor) -> Tensor:
        """Return what to call ``backward`` on; ``loss`` has no dimension."""
        scaled = self._scaler.scale(loss)
        assert isinstance(scaled, Tensor)
        return scaled

    def unscale(
        self,
        optimizer: torch.optim.Optimizer,
        agree: Callable[[Tensor], None] = lambda found: None,
    ) -> None:
        """Bring synchronized gradients to the scale of the loss; ``agree`` is called
        with a tensor (1,) that is not 0 where one of them has overflowed.
        """
        self._scaler.unscale_(optimizer)
        if self._scaler.is_enabled():
            for found in overflows_of(self._scaler, optimizer):
                agree(found)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer, unless a gradient has overflowed."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the state of the scaler in plain numbers, alike on all ranks."""
        return dict(self._scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        if state:
            self._scaler.load_state_dict(state)
