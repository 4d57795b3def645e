"""Hooks of backward passes: from which forward passes a gradient was accumulated, and
sketches of this rank's gradients before any reduction, of a step and of each pass.

Gradients that were dropped before a step (``zero_grad`` after a step that a loss scaler
skipped) belong to no step, nor do their passes. Gradients left in place by a step count
for the next one. To detect both, a hook runs before each addition to a gradient.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minitrain.comm.torch_private import changes_in_place
from minitrain.recording.fingerprint import sketch, stays_sparse
from minitrain.recording.format import Row
from minitrain.recording.hooks import Tap, is_in_parts, parameters_of

Sketch = list[float]
# of a step with more additions, passes are not distinguished: it would fill the disk
MOST_ADDED = 16


@dataclass
class TrainingPass:
    """A training pass, with its ``number`` among recorded ones. ``facts``: fields of
    the row of its step. ``first``: more facts, None unless it is the step's first pass.
    """

    number: int
    facts: Row
    first: Row | None = None
    losses: list[Tensor | float] = field(default_factory=list)
    # whether a backward pass came next
    has_backward: bool = False


@dataclass
class Gradient:
    """Record of one parameter's ``.grad``. ``since``: number of the first forward pass
    accumulated in it. ``carried``: it contains the gradient of the step before, too.
    """

    since: int
    carried: bool = False
    # whether there was one before; torch.autograd.grad then adds nothing to it
    there: bool = False
    # number of the last backward pass that adds to it, and how many have so far
    last_backward: int = 0
    count: int = 0
    # autograd's count of changes after that pass
    version: int | None = None
    # sketch of what each pass but the last added; None if there are too many
    shares: list[Sketch] | None = field(default_factory=list)
    # sketch of the sum of earlier passes, to which the running pass adds
    base: Sketch | None = None


class Backwards:
    """Sketches of this rank's gradients before any reduction, by name of parameter.

    A hook that runs before a backward pass adds to a gradient enters it in ``known``. A
    hook after the addition sketches the gradient, if the pass synchronizes.
    :meth:`take` returns the sketches at the optimizer's step. After the step, rows.py
    deletes its gradients from ``known``.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self.forget()

    def forget(self) -> None:
        """Remove the hooks and drop all gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # parameters with hooks, by ``id``
        self._heard: dict[int, nn.Parameter] = {}
        self.known: dict[str, Gradient] = {}
        self._num_backwards, self._first_forward, self._running = 0, 0, False
        self._last_forward: TrainingPass | None = None
        self._own_sketches: dict[str, Sketch] = {}

    def listen(self, inner: nn.Module) -> None:
        """Add hooks to parameters that require a gradient and have no hooks yet."""
        for name, parameter in parameters_of(inner).items():
            # no rank has the gradients of sharded ones before their reduction
            trains = parameter.requires_grad and not is_in_parts(parameter)
            if trains and id(parameter) not in self._heard:
                self._heard[id(parameter)] = parameter
                self._hook(name, parameter)

    def _hook(self, name: str, parameter: nn.Parameter) -> None:
        def look(added: Tensor) -> None:
            self._before_adding(name, parameter.grad)

        def see(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._after_adding(name, parameter.grad)

        self._handles += [
            parameter.register_hook(Tap(look)),
            parameter.register_post_accumulate_grad_hook(Tap(see)),
        ]

    def pass_begins(self, one: TrainingPass) -> None:
        """Register a forward pass: the next backward pass belongs to it."""
        self._last_forward = one
        if self._running:
            self._first_forward, self._running = one.number, False

    def _before_adding(self, name: str, gradient: Tensor | None) -> None:
        # The gradient so far: None or zero (the step's first pass, or dropped by the
        # loop since), of an earlier pass of this step (a share is recorded for each
        # pass), or of the step before (carried).
        if not self._running:
            self._running = True
            self._num_backwards += 1
            if self._last_forward is not None:
                self._last_forward.has_backward = True
        known = self.known.get(name)
        if known is not None and known.last_backward == self._num_backwards:
            return
        version = known.version if known else None
        changed = gradient is not None and changes_in_place(gradient) != version
        # a gradient that is zero but unchanged since its pass was not dropped
        is_new = gradient is None or (changed and _is_zero(gradient))
        if is_new or known is None:
            known = Gradient(self._first_forward, there=not is_new)
            self.known[name] = known
        known.last_backward, known.count = self._num_backwards, known.count + 1
        before = self._own_sketches.pop(name, None)
        if known.count == 1 or gradient is None or stays_sparse(gradient):
            return
        if known.shares is not None:
            now = sketch(gradient)
            # a reduction may have changed it since the pass before
            known.shares.append(_less(before or now, known.base))
            known.base = now
            if len(known.shares) > MOST_ADDED:
                known.shares = None

    def _after_adding(self, name: str, gradient: Tensor) -> None:
        if known := self.known.get(name):
            known.version = changes_in_place(gradient)
            known.carried = known.there
        last = self._last_forward
        # sketches of sparse ones cannot be added: their indices differ
        is_dense = not stays_sparse(gradient)
        if is_dense and (last is None or last.facts["synced"] is not False):
            self._own_sketches[name] = sketch(gradient)

    def take(
        self, names: list[str]
    ) -> tuple[dict[str, Sketch], dict[str, list[Sketch]]]:
        """Remove and return the sketches of gradients ``names`` that exist; for those
        of several passes, also a list with the sketch of each pass's share.
        """
        own = {n: self._own_sketches.pop(n) for n in names if n in self._own_sketches}
        passes = {}
        for name, of_all in own.items():
            if (known := self.known.get(name)) and known.shares:
                passes[name] = [*known.shares, _less(of_all, known.base)]
        return own, passes


def _less(a: Sketch, b: Sketch | None) -> Sketch:
    return a if b is None else [x - y for x, y in zip(a, b, strict=True)]


def _is_zero(gradient: Tensor) -> bool:
    is_readable = gradient.layout in (torch.strided, torch.sparse_coo)
    return is_readable and not bool(gradient.detach().any())
