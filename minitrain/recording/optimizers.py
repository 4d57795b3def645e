"""Hooks of optimizers: they run at each step, made by any caller.

Torch's global hooks of optimizers also run for optimizers in a wrapper (Accelerate,
Fabric, a loss scaler), and for those made late. Of nested steps, as in
ZeroRedundancyOptimizer, the outermost counts.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from blake3 import blake3
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from minitrain.core.errors import UserError
from minitrain.core.printable import print_note
from minitrain.recording.fingerprint import DIGEST_BYTES, bytes_in, gathered
from minitrain.recording.hooks import running_steps, uncompiled

# always recorded: most goes wrong in the first steps, and rounding is small there
FIRST_STEPS = 3
# steps of others after which an optimizer without a step counts as ended
IDLE = 100
# keys of a group that are no settings: the learning rate is recorded separately, and
# others determine how to compute, not what
NO_SETTING = {
    *("params", "param_names", "lr", "initial_lr"),
    *("foreach", "fused", "capturable", "differentiable"),
}
LEFT_OUT = "minitrain: note: optimizer state in {} is not recorded: {}"
_note_once = cache(print_note)


@dataclass
class Stepped:
    """The steps of one optimizer: its ``number`` from 0, and how many ``steps`` it
    made. Counts when the last of these ended: ``last``, steps of all optimizers;
    ``passes``, forward passes in recorded steps. ``held``: ``id`` of the parameters it
    had at first. ``has_begun``: a step is running; ``by_closure``: it computes
    gradients itself.
    """

    number: int
    ref: "weakref.ref[Optimizer]"
    steps: int = 0
    passes: int = 0
    last: int = 0
    held: set[int] = field(default_factory=set)
    has_begun: bool = False
    by_closure: bool = False

    def is_due(self, every: int) -> bool:
        """Return true if the optimizer's next step is to be recorded."""
        return self.steps < FIRST_STEPS or self.steps % every == 0

    def grad_scale(self) -> float:
        """Return the factor by which the optimizer still has to divide the gradients: a
        loss scaler leaves this to fused optimizers. 1 if there is none.
        """
        scale = getattr(self.optimizer, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def holds(self) -> set[int]:
        """Return the ``id`` of each parameter that is in the optimizer now."""
        return {id(parameter) for parameter in _held(self.optimizer)}

    def parts(self) -> str:
        """Return as text how many gradients and states a recorded step gathers. Ranks
        compare these texts first: if they differed, gathering would hang.
        """
        held = _held(self.optimizer)
        gradients = sum(parameter.grad is not None for parameter in held)
        states = sum(len(self.optimizer.state.get(p, ())) for p in held)
        return f"{gradients} gradients and {states} states"

    def rates(self) -> list[float]:
        """Return the learning rate of each group that has one."""
        groups = self.optimizer.param_groups
        # Adafactor's is None if it chooses the rate itself
        return [float(g["lr"]) for g in groups if g.get("lr") is not None]

    def settings(self, names: Mapping[int, str]) -> list[dict[str, Any]]:
        """Return for each parameter group its ``parameters``, by name (``names`` by
        ``id``), and ``settings``: numbers and words other than the learning rate.
        """
        return [
            {
                "parameters": [names[id(p)] for p in group["params"] if id(p) in names],
                "settings": {
                    key: plain
                    for key, value in group.items()
                    if key not in NO_SETTING and (plain := _plain(value)) is not None
                },
            }
            for group in self.optimizer.param_groups
        ]

    def moments(self, names: Mapping[int, str]) -> dict[str, str]:
        """Map each parameter's name (``names`` by ``id``) to a hash of its optimizer
        state; "" stands for all without a name. DTensors are gathered (collective);
        with ZeroRedundancyOptimizer, only this rank's parameters.
        """
        keeps: Any = self.optimizer
        if not keeps.state:
            keeps = getattr(keeps, "optim", keeps)
        found: dict[str, Any] = {}
        for parameter in _held(keeps):
            if kept := keeps.state.get(parameter):
                digest = found.setdefault(names.get(id(parameter), ""), blake3())
                for part in _parts(kept):
                    digest.update(part)
        return {n: one.hexdigest(length=DIGEST_BYTES) for n, one in found.items()}

    @property
    def optimizer(self) -> Optimizer:
        """Return the optimizer, which must exist, as it does during its step."""
        optimizer = self.ref()
        assert optimizer is not None, "it is at a step"
        return optimizer


def _plain(value: Any) -> Any:
    # return a number, a word, or a list of numbers, as JSON has them; else None
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, list | tuple):
        are_numbers = all(isinstance(one, bool | int | float) for one in value)
        return [*value] if are_numbers else None
    return value if isinstance(value, bool | int | float | str) else None


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _parts(kept: Any) -> Iterator[bytes | memoryview]:
    if isinstance(kept, Tensor):
        try:
            yield bytes_in(gathered(kept))
        # any error of a tensor subclass, for example an 8-bit state
        except Exception as error:
            _note_once(LEFT_OUT.format(type(kept).__name__, error))
    elif isinstance(kept, dict):
        for key in sorted(kept, key=str):
            yield str(key).encode()
            yield from _parts(kept[key])
    elif isinstance(kept, list | tuple):
        for one in kept:
            yield from _parts(one)
    elif isinstance(kept, bool | int | float | str | None):
        yield repr(kept).encode()


def unwrapped(given: Any) -> list[Optimizer] | None:
    """Return the torch optimizers in ``given``, without wrappers; None for None."""
    if given is None:
        return None
    found = [*given] if isinstance(given, Sequence) else [given]
    for place, one in enumerate(found):
        # Accelerate's and Fabric's hold it under this name, as do schedulers
        while hasattr(one, "param_groups") and hasattr(one, "optimizer"):
            one = one.optimizer
        if not isinstance(one, Optimizer):
            raise UserError(
                f"record: optimizer is a {type(one).__name__}: must be a "
                "torch.optim.Optimizer, a list of them, or None"
            )
        found[place] = one
    return found


@dataclass
class Optimizers:
    """Call ``before(stepped)`` and ``after(stepped)`` around every outermost step of
    the optimizers ``given``; if None, of those that hold a parameter of ``inner``.
    ``seen``: those given, or with a step begun; ``steps``: sum of their steps.
    """

    given: list[Optimizer] | None
    inner: nn.Module
    before: Callable[[Stepped], None]
    after: Callable[[Stepped], None]
    seen: list[Stepped] = field(default_factory=list)
    steps: int = 0
    _handles: list[RemovableHandle] = field(default_factory=list)

    def start(self) -> None:
        """Add torch's global hooks of optimizers."""
        for one in self.given or ():
            self._number(one)
        self._handles = [
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(self._ended),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def are_due(self, every: int) -> bool:
        """Return true if any active optimizer ``is_due``, or none has stepped yet."""
        stepped = [one for one in self.seen if one.steps and one.ref() is not None]
        at_work = [one for one in stepped if self.steps - one.last <= IDLE]
        return not stepped or any(one.is_due(every) for one in at_work)

    def hold(self) -> set[int]:
        """Return the ``id`` of each parameter that is in any optimizer now."""
        alive = [one for one in self.seen if one.ref() is not None]
        return {held for one in alive for held in one.holds()}

    # a compiled step would trace the whole recorder
    @uncompiled
    def _begins(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        stepped = self._outermost(optimizer)
        if stepped is not None:
            stepped.has_begun = True
            stepped.by_closure = any(map(callable, [*args[1:], *options.values()]))
            self.before(stepped)

    @uncompiled
    def _ended(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        stepped = self._outermost(optimizer)
        if stepped is None or not stepped.has_begun:
            return
        stepped.has_begun = False
        if not _was_skipped(optimizer):
            self.steps += 1
            stepped.steps += 1
            stepped.last = self.steps
            self.after(stepped)

    def _outermost(self, optimizer: Optimizer) -> Stepped | None:
        # None for an optimizer of others, or if this step is within another one
        _, *around = running_steps() or [optimizer]
        # the outermost first: those within it get no number
        if any(one and self._find(one) for one in reversed(around)):
            return None
        return self._find(optimizer)

    def _find(self, optimizer: Optimizer) -> Stepped | None:
        for one in self.seen:
            if one.ref() is optimizer:
                return one
        if self.given is not None:
            return None
        ours = set(map(id, self.inner.parameters()))
        is_ours = not ours.isdisjoint(map(id, _held(optimizer)))
        return self._number(optimizer) if is_ours else None

    def _number(self, optimizer: Optimizer) -> Stepped:
        made = Stepped(len(self.seen), weakref.ref(optimizer))
        made.held = made.holds()
        # an optimizer that replaces another continues after the last step of that one
        before = [one for one in self.seen if not one.held.isdisjoint(made.held)]
        made.passes = max((one.passes for one in before), default=0)
        self.seen.append(made)
        return made


def _was_skipped(optimizer: Optimizer) -> bool:
    # a loss scaler calls a fused optimizer even if gradients overflowed
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
