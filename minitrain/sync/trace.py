"""The buckets of a step: who was reduced together, and when."""

from dataclasses import dataclass, field


@dataclass
class BucketEvent:
    """One bucket of one step: what it holds, when it was handed over and reduced.

    Times are ``perf_counter_ns`` readings; ``done_ns`` is 0 until it is reduced. Both
    are None on a GPU, where the hook only enqueues work and its clock says nothing.
    """

    parameters: tuple[str, ...]
    num_bytes: int
    called_ns: int | None
    done_ns: int | None = 0


@dataclass
class SyncTrace:
    """The buckets of the current step, in the order in which they were handed over.

    ``computed_ns`` is when the last gradient was there: from then on nothing hides
    communication. ``optimizer_ns`` is what the optimizer's step spent on it. ``hosts``,
    the ranks on each host, stands from step to step, for a strategy that adds inside of
    them first; None for the others.
    """

    events: list[BucketEvent] = field(default_factory=list)
    computed_ns: int | None = None
    optimizer_ns: int | None = None
    hosts: list[list[int]] | None = None

    def clear(self) -> None:
        """Forget the step before."""
        self.events.clear()
        self.computed_ns = self.optimizer_ns = None
