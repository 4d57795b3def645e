"""Backward passes of a step: the forward passes that its gradients come from, and the
gradients of this rank before any reduction, in the step and in each pass.

Gradients that were dropped before a step (``zero_grad`` after a step that a loss scaler
skipped) belong to no step, nor do their passes. Gradients that a step leaves in place
go into the next one. A hook just before a backward pass adds to a gradient sees both.
"""

import weakref
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minitrain.comm.torch_private import changes_in_place
from minitrain.recording.fingerprint import sketch
from minitrain.recording.format import Row
from minitrain.recording.hooks import Tap, is_in_parts, parameters_of

Sketch = list[float]
# bytes of gradients that wait to be sketched: less than a bucket of DDP
KEPT = 8 << 20
# more passes of a step are not distinguished: their sketches would fill the disk
MOST_PASSES = 16


@dataclass
class Pass:
    """A forward pass: ``told`` goes into the row of its step; ``first`` too, which only
    the first pass of a step has.
    """

    number: int
    told: Row
    first: Row | None = None
    losses: list[Tensor | float] = field(default_factory=list)
    # a backward pass came next
    has_backward: bool = False


@dataclass
class Gradient:
    """The gradient of a parameter as it is known: ``since`` is the number of the
    first forward pass that is in it. It is ``carried`` if it includes the gradient of
    the step before, and ``touched`` if it changed between two passes of which the first
    did not synchronize.
    """

    since: int
    carried: bool = False
    touched: bool = False
    # the last backward pass that added to it, and which one of the step that was
    last: int = 0
    count: int = 0
    # its version as a pass left it, and whether that pass synchronized
    version: int | None = None
    synced: bool = True
    # of each pass but the last, by sketch; None if they are too many
    shares: list[Sketch] | None = field(default_factory=list)
    # what the running pass adds to
    base: Sketch | None = None


class Backwards:
    """Gradients that are ``known``, by parameter, and sketches of them as backward
    passes leave them, before any reduction. A pass that is not synchronized leaves its
    gradient to the next one, which adds to it.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._heard: dict[int, weakref.ref[nn.Parameter]] = {}
        self.forget()

    def forget(self) -> None:
        """Remove the hooks, and note that no step to be recorded comes next."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._heard.clear()
        self.known: dict[str, Gradient] = {}
        self._number, self._first, self._running = 0, 0, False
        self._last: Pass | None = None
        self._own: dict[str, Sketch] = {}
        # gradients that are yet to be sketched, and their bytes
        self._kept: dict[str, Tensor] = {}
        self._num_kept = 0

    def listen(self, inner: nn.Module) -> None:
        """Hook parameters that require a gradient and have no hooks yet; not sharded
        ones, of which no rank has a gradient before the reduction.
        """
        for name, parameter in parameters_of(inner).items():
            heard = self._heard.get(id(parameter), lambda: None)() is parameter
            trains = parameter.requires_grad and not is_in_parts(parameter)
            if trains and not heard:
                self._heard[id(parameter)] = weakref.ref(parameter)
                self._hook(name, parameter)

    def _hook(self, name: str, parameter: nn.Parameter) -> None:
        def look(added: Tensor) -> None:
            self._before(name, parameter.grad)

        def see(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._after(name, parameter.grad)

        self._handles += [
            parameter.register_hook(Tap(look)),
            parameter.register_post_accumulate_grad_hook(Tap(see)),
        ]

    def pass_begins(self, one: Pass) -> None:
        """Note a forward pass, the first after a backward pass or not."""
        self._last = one
        if self._running:
            self._first, self._running = one.number, False

    def _before(self, name: str, gradient: Tensor | None) -> None:
        if not self._running:
            self._running = True
            self._number += 1
            if self._last is not None:
                self._last.has_backward = True
        known = self.known.get(name)
        if known is not None and known.last == self._number:
            return
        version = known.version if known else None
        changed = gradient is not None and changes_in_place(gradient) != version
        # a gradient that is zero but unchanged since its pass was not dropped
        is_new = gradient is None or (changed and _is_zero(gradient))
        if is_new or known is None:
            known = Gradient(self._first, carried=not is_new)
            self.known[name] = known
        elif changed and not known.synced:
            known.touched = True
        known.last, known.count = self._number, known.count + 1
        if known.count == 1:
            self._take_own(name)
        elif gradient is not None and known.shares is not None:
            now = sketch(gradient)
            # a reduction may have changed it since the pass before
            known.shares.append(_less(self._take_own(name) or now, known.base))
            known.base = now
            if len(known.shares) > MOST_PASSES:
                known.shares = None

    def _after(self, name: str, gradient: Tensor) -> None:
        synced = self._last is None or self._last.told["synced"] is not False
        if known := self.known.get(name):
            known.version, known.synced = changes_in_place(gradient), synced
        if not synced:
            return
        if gradient.layout is not torch.strided or gradient.nbytes > KEPT:
            self._own[name] = sketch(gradient)
            return
        # later, many at once: during a backward pass each takes three times as long
        self._kept[name] = gradient.detach().clone()
        self._num_kept += gradient.nbytes
        if self._num_kept > KEPT:
            self._sketch_kept()

    def take(
        self, names: list[str]
    ) -> tuple[dict[str, Sketch], dict[str, list[Sketch]]]:
        """Return the sketches of ``names``; and for gradients of several passes, the
        sketch of the share of each pass.
        """
        self._sketch_kept()
        own = {n: self._own.pop(n) for n in names if n in self._own}
        passes = {}
        for name, of_all in own.items():
            known = self.known.get(name)
            if known is not None and known.shares:
                passes[name] = [*known.shares, _less(of_all, known.base)]
        return own, passes

    def _take_own(self, name: str) -> Sketch | None:
        own, kept = self._own.pop(name, None), self._kept.pop(name, None)
        self._num_kept -= 0 if kept is None else kept.nbytes
        return own if kept is None else sketch(kept)

    def _sketch_kept(self) -> None:
        self._num_kept = 0
        # not over its items: each device has a thread that may add some
        with suppress(KeyError):
            while True:
                name, gradient = self._kept.popitem()
                self._own[name] = sketch(gradient)


def _less(a: Sketch, b: Sketch | None) -> Sketch:
    return a if b is None else [x - y for x, y in zip(a, b, strict=True)]


def _is_zero(gradient: Tensor) -> bool:
    is_dense = gradient.layout is torch.strided
    return is_dense and not bool(gradient.detach().any())
