"""A recorder that keeps the values of one step too, for the locator."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from minitrain.train.recorder import Recorder, Row, Tensors, sampled_steps


class Keeper(Recorder):
    """Records the ``recorded`` steps, and keeps the values of step ``keep``."""

    def __init__(
        self, model: nn.Module, recorded: Iterable[int], keep: int | None
    ) -> None:
        super().__init__(model, recorded, sampled_steps(recorded))
        self._keep = keep
        self.values: dict[str, Any] = {}

    def own_gradients(self, step: int, gradients: Sequence[Tensors]) -> None:
        if step == self._keep:
            self.values["own"] = [dict(own) for own in gradients]

    def gradients(self, step: int) -> None:
        super().gradients(step)
        if step == self._keep:
            named = list(self._model.named_parameters())
            grads = {n: p.grad.clone() for n, p in named if p.grad is not None}
            self.values["gradients"] = grads
            self.values["before"] = {n: p.detach().clone() for n, p in named}

    def state(self, step: int, precision: Row | None = None) -> None:
        super().state(step, precision)
        if step == self._keep:
            named = self._model.named_parameters()
            self.values["after"] = {n: p.detach().clone() for n, p in named}
