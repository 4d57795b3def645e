"""Backward passes of a step: which forward passes the gradients come from.

Gradients that were dropped before a step (``zero_grad`` after a step that a loss scaler
skipped) belong to no step, nor do their passes. Gradients that a step leaves in place
go into the next one. Both are seen just before a backward pass adds to a gradient.
"""

import torch
from torch import Tensor

from minitrain.comm.torch_private import changes_in_place


class Backwards:
    """State of the gradients of each parameter, by name.

    ``since`` is the number of the first pass whose gradient is in it. ``carried`` are
    parameters whose gradient holds that of the step before; ``touched`` those whose
    gradient changed between two passes of which the first did not synchronize.
    """

    def __init__(self) -> None:
        self.since: dict[str, int] = {}
        self.carried: set[str] = set()
        self.touched: set[str] = set()
        # as a pass left it, and whether it synchronizes
        self._left: dict[str, tuple[int, bool]] = {}
        # the last backward pass that added to it, and which one of the step that was
        self._last: dict[str, tuple[int, int]] = {}
        self._number = 0
        self._first = 0
        self._running = False

    def pass_begins(self, number: int) -> None:
        """Note a forward pass, the first after a backward pass or not."""
        if self._running:
            self._first, self._running = number, False

    def begins(self) -> bool:
        """Return whether this gradient is the first of its backward pass."""
        was, self._running = self._running, True
        self._number += not was
        return not was

    def before(self, name: str, gradient: Tensor | None) -> int:
        """Look at the gradient of a parameter before this pass is added to it.

        Returns:
            Which backward pass of the step adds to it, from 1; 0 if it did so before.
        """
        if self._last.get(name, (0, 0))[0] == self._number:
            return 0
        known = self.since.get(name)
        version, synced = self._left.get(name, (None, True))
        changed = gradient is not None and changes_in_place(gradient) != version
        # one that is zero as a pass left it was not dropped
        if gradient is None or (changed and _is_zero(gradient)):
            self.forget(name)
        elif known is None:
            self.carried.add(name)
        elif changed and not synced:
            self.touched.add(name)
        self.since.setdefault(name, self._first)
        count = self._last.get(name, (0, 0))[1] + 1
        self._last[name] = self._number, count
        return count

    def after(self, name: str, gradient: Tensor, synced: bool) -> None:
        """Note a gradient as this rank's backward pass leaves it."""
        self._left[name] = changes_in_place(gradient), synced

    def forget(self, name: str) -> None:
        """Start anew with the gradient of a parameter."""
        self.since.pop(name, None)
        self._left.pop(name, None)
        self._last.pop(name, None)
        self.carried.discard(name)
        self.touched.discard(name)


def _is_zero(gradient: Tensor) -> bool:
    is_dense = gradient.layout is torch.strided
    return is_dense and not bool(gradient.detach().any())
