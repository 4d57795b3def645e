"""How the gradients of the ranks become one: one file per family of strategies."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn


@dataclass
class BucketEvent:
    """One bucket of one step: what it holds, when it was handed over and reduced.

    Times are ``perf_counter_ns`` readings; ``done_ns`` is 0 until it is reduced. Both
    are None on a GPU, where the hook only enqueues work and its clock says nothing.
    """

    parameters: tuple[str, ...]
    num_bytes: int
    is_last: bool
    called_ns: int | None
    done_ns: int | None = 0


@dataclass
class SyncTrace:
    """The buckets of the current step, in the order in which they were handed over."""

    events: list[BucketEvent] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the step before."""
        self.events.clear()


class GradientSync(Protocol):
    """What the training loop knows of a strategy.

    ``module`` is called for the forward pass; when ``backward`` returns, every
    parameter's gradient is the synchronised one. ``trace`` stays empty where the
    strategy does not watch its buckets.
    """

    module: nn.Module
    trace: SyncTrace

    def silent(self) -> AbstractContextManager[None]:
        """Forward and backward inside leave local gradients and send nothing."""
        ...

    def finish(self) -> None:
        """Bring the ranks to one state after the last step; call it on all of them."""
        ...
