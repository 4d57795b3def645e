"""Training passes that lead to a recorded step: inputs, wrapper, random state, loss.

:class:`Passes` records each pass as it runs; rows.py writes them into the step's row.
"""

from collections import deque
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from minitrain.recording import hooks
from minitrain.recording.backwards import Backwards, TrainingPass
from minitrain.recording.fingerprint import digest, fingerprint
from minitrain.recording.format import Row
from minitrain.recording.inputs import random_digest, read
from minitrain.recording.modules import ModuleCalls
from minitrain.recording.optimizers import Optimizers, Stepped

# of a step that accumulates more passes, only the last ones are kept
MOST_PASSES = 1024


class Passes:
    """Record the training passes of ``inner``, the model without wrappers.

    With ``modules``, ``calls`` records calls of modules within a pass, until it is set
    to None. ``forwards`` counts training passes, recorded or not. ``backwards`` has
    sketches of gradients in recorded passes; ``seen_from`` is the number of all
    optimizers' steps when its hooks came. ``wrappers`` are those seen so far.
    """

    def __init__(self, inner: nn.Module, modules: bool) -> None:
        self._inner, self.wrappers = inner, hooks.Wrappers()
        self.calls = ModuleCalls() if modules else None
        self.forwards = 0
        self.backwards, self.seen_from = Backwards(), 0
        self._listens = False
        self._kept: deque[TrainingPass] = deque(maxlen=MOST_PASSES)
        # number of recorded passes so far, and whether the next is a step's first
        self._count, self._is_first = 0, True

    def begins(
        self, wrapper: nn.Module | None, module: nn.Module, args: Any, options: Any
    ) -> None:
        """Record a pass as it begins."""
        group = getattr(wrapper, "process_group", None)
        random = self._random()
        facts = read(module, args, options) | {
            "wrapper": "" if wrapper is None else type(wrapper).__name__,
            "wrapper_id": self.wrappers.count,
            "synced": getattr(wrapper, "require_backward_grad_sync", None),
            "group": group.size() if isinstance(group, dist.ProcessGroup) else None,
            "random": random,
            "draws": False,
        }
        if self.calls is not None:
            self.calls.listen(self._inner, module)
        one = TrainingPass(self._count, facts)
        self.backwards.pass_begins(one)
        self._kept.append(one)
        self._count += 1
        if self._is_first:
            self._is_first = False
            one.first = {
                "random": random,
                "buffers": fingerprints_of_buffers(self._inner),
                "broadcast_buffers": getattr(wrapper, "broadcast_buffers", None),
            }

    def ended(self) -> None:
        """Record the ended pass's module calls, and if it drew random numbers."""
        self.look_for_draws()
        if self.calls is not None:
            self.calls.forget()
            if self._kept:
                self._kept[-1].facts["modules"] = self.calls.calls

    def look_for_draws(self) -> None:
        """Record whether the last pass, or its loss, drew random numbers so far."""
        if self._kept and not (facts := self._kept[-1].facts)["draws"]:
            facts["draws"] = self._random() != facts["random"]

    def loss(self, loss: Tensor | float) -> None:
        """Add a loss of the last pass."""
        if self._kept:
            # the loop may change it in place
            kept = loss.detach().clone() if isinstance(loss, Tensor) else loss
            self._kept[-1].losses.append(kept)

    def listen(self, optimizers: Optimizers) -> None:
        """Add hooks to all of the model's parameters that require a gradient now."""
        self.backwards.listen(self._inner)
        if not self._listens:
            self._listens, self.seen_from = True, optimizers.steps

    def forget(self) -> None:
        """Remove the hooks and drop the passes."""
        if self._listens:
            self._listens = False
            self._kept.clear()
            self.backwards.forget()
            # an error may have ended the pass
            if self.calls is not None:
                self.calls.forget()

    def before(self, stepped: Stepped) -> list[TrainingPass]:
        """Return the passes that began after the last step of ``stepped``."""
        return [one for one in self._kept if one.number >= stepped.passes]

    def step_ended(self, stepped: Stepped) -> None:
        """Note that the passes so far belong to ``stepped``, or to steps before it."""
        stepped.passes, self._is_first = self._count, True

    def _random(self) -> str:
        # the model may have been moved since the recorder was made
        return random_digest(next(self._inner.parameters()).device)


def fingerprints_of_buffers(inner: nn.Module) -> dict[str, Row]:
    """Return a fingerprint of each buffer; of integers, a hash."""
    # other numbers may differ by rounding, which their sketches show
    return {
        n: fingerprint(b) if b.is_floating_point() else {"hash": digest(b)}
        for n, b in hooks.plain_names(inner, inner.named_buffers()).items()
    }
