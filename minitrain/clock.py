"""Where the time of a step goes, on one rank: stamps in order, one row a step.

The clock is ``time.perf_counter_ns``. Times are in milliseconds, as measured; nothing
is summarised here.
"""

import time
from collections.abc import Callable
from typing import Any, Literal

from minitrain.sync import SyncTrace

Kind = Literal["plain", "instrumented", "bracketed"]
Row = dict[str, Any]
NS_PER_MS = 1e6


def kind_of_step(step: int) -> Kind:
    """Every second step runs as it would without a clock; the others take turns.

    Before an ``instrumented`` step the ranks meet at a barrier, so that its parts
    hold no waiting; the backward pass of a ``bracketed`` step lies between barriers.
    """
    if step < 2 or step % 2 == 0:
        return "plain"
    return "instrumented" if step % 4 == 1 else "bracketed"


class StepClock:
    """Stamps the parts of a step, one after the other.

    ``synchronize`` is called before a stamp of a step that is not plain, and at the
    end of every step: on a GPU it waits for the device. ``kind_of_step`` says which
    steps are plain.
    """

    def __init__(
        self,
        synchronize: Callable[[], None] = lambda: None,
        kind_of_step: Callable[[int], Kind] = kind_of_step,
    ) -> None:
        self._synchronize = synchronize
        self._kind_of_step = kind_of_step
        self._last = time.perf_counter_ns()
        self._step_ns = 0
        self.row: Row = {}
        self.kind: Kind = "plain"

    def begin(self, step: int) -> None:
        """Start the row of ``step``; its first part began where the last one ended."""
        self.kind = self._kind_of_step(step)
        self.row = {"step": step, "kind": self.kind}
        self._step_ns = 0

    def restart(self) -> None:
        """Leave out what happened since the last stamp."""
        self._synchronize()
        self._last = time.perf_counter_ns()

    def mark(self, part: str) -> None:
        """Close ``part``: all time since the last stamp belongs to it."""
        if self.kind != "plain" or part == "optimizer":
            self._synchronize()
        now = time.perf_counter_ns()
        self.row[f"{part}_ms"] = (now - self._last) / NS_PER_MS
        self._step_ns += now - self._last
        self._last = now

    @property
    def now_ns(self) -> int:
        """The last stamp."""
        return self._last

    def finish(self) -> Row:
        """The row of the step; ``step_ms`` is the sum of its parts."""
        return {**self.row, "step_ms": self._step_ns / NS_PER_MS}


def bucket_times(trace: SyncTrace, start_ns: int, end_ns: int) -> Row:
    """What the buckets of a backward pass from ``start_ns`` to ``end_ns`` tell.

    ``to_last_bucket_ms``: start to the hook of the last bucket; ``comm_exposed_ms``:
    from there to the end, when nothing hides communication; ``comm_total_ms``: length
    of the union of all [handed over, reduced], of which ``comm_hidden_ms`` lies before
    the last bucket's hook. ``last_bucket_at_ns`` is on the clock that all ranks of a
    host share. Empty for a trace without buckets, or without times (GPU).
    """
    timed = [
        (event.called_ns, event.done_ns, event.is_last)
        for event in trace.events
        if event.called_ns is not None and event.done_ns is not None
    ]
    if not timed:
        return {}
    last = next(called for called, _, is_last in timed if is_last)
    spans = [(called, done) for called, done, _ in timed]
    hidden = [(begin, min(end, last)) for begin, end in spans if begin < last]
    return {
        "to_last_bucket_ms": (last - start_ns) / NS_PER_MS,
        "comm_exposed_ms": (end_ns - last) / NS_PER_MS,
        "comm_total_ms": union_length(spans) / NS_PER_MS,
        "comm_hidden_ms": union_length(hidden) / NS_PER_MS,
        "last_bucket_at_ns": last,
    }


def union_length(spans: list[tuple[int, int]]) -> int:
    """Length of the union of intervals; what overlaps counts once."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total
