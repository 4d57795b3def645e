"""Step timing on one rank: one row (a dict) per step, with times in milliseconds."""

import time
from collections.abc import Callable
from typing import Any, Literal

from minitrain.sync.strategy import SyncTrace

Kind = Literal["plain", "bracketed"]
Row = dict[str, Any]
NS_PER_MS = 1e6
BRACKET_EVERY = 5


def kind_of_step(step: int) -> Kind:
    """Return ``bracketed`` for the last of every five steps, whose backward pass is
    timed between barriers and then repeated without communication; else ``plain``.
    """
    return "bracketed" if step % BRACKET_EVERY == BRACKET_EVERY - 1 else "plain"


class StepClock:
    """Stopwatch for the components of a step, such as ``forward``. ``now_ns`` is its
    last reading. ``synchronize`` is called before every reading, to wait for a GPU.
    ``watches``: time steps of all kinds (:func:`kind_of_step`), not only plain ones.
    """

    def __init__(self, synchronize: Callable[[], None], watches: bool) -> None:
        self._synchronize = synchronize
        self.watches = watches
        self.now_ns = time.perf_counter_ns()
        self._step_ns = 0
        self.row: Row = {}
        self.kind: Kind = "plain"

    def begin(self, step: int) -> None:
        """Start the row of ``step``. Its first component began at the last reading."""
        self.kind = kind_of_step(step) if self.watches else "plain"
        self.row = {"step": step, "kind": self.kind}
        self._step_ns = 0

    def restart(self) -> None:
        """Exclude the time since the last reading from all components."""
        self._synchronize()
        self.now_ns = time.perf_counter_ns()

    def mark(self, part: str) -> None:
        """Add the time since the last reading to ``{part}_ms`` of the row."""
        self._synchronize()
        now = time.perf_counter_ns()
        name = f"{part}_ms"
        self.row[name] = self.row.get(name, 0.0) + (now - self.now_ns) / NS_PER_MS
        self._step_ns += now - self.now_ns
        self.now_ns = now

    def carve(self, part: str, out_of_it: str, length_ns: int | None) -> None:
        """Split ``length_ns``, unless None, off ``part`` as component ``out_of_it``."""
        if length_ns is not None:
            self.row[f"{part}_ms"] -= length_ns / NS_PER_MS
            self.row[f"{out_of_it}_ms"] = length_ns / NS_PER_MS

    def finish(self) -> Row:
        """Return the row of the step; ``step_ms`` is the sum of its components."""
        return {**self.row, "step_ms": self._step_ns / NS_PER_MS}


def bucket_times(trace: SyncTrace, backward_ms: float, end_ns: int) -> Row:
    """Return the times that show how a backward pass, which took ``backward_ms`` until
    ``end_ns`` (``perf_counter_ns``), overlaps with the reduction of buckets.

    Returns:
        ``last_bucket_at_ns``: when the last gradient was computed;
        ``to_last_bucket_ms``, ``comm_exposed_ms``: backward time before and after it;
        ``comm_total_ms``: time with at least one bucket in reduction;
        ``comm_hidden_ms``: its part before the last gradient; ``comm_span_ms``: time
        from the first bucket to the end. Empty without buckets or their times (GPU).
    """
    spans = [
        (event.called_ns, event.done_ns)
        for event in trace.events
        if event.called_ns is not None and event.done_ns is not None
    ]
    last = trace.computed_ns
    if not spans or last is None:
        return {}
    hidden = [(begin, min(end, last)) for begin, end in spans if begin < last]
    exposed = (end_ns - last) / NS_PER_MS
    return {
        "to_last_bucket_ms": backward_ms - exposed,
        "comm_exposed_ms": exposed,
        "comm_total_ms": union_length(spans) / NS_PER_MS,
        "comm_span_ms": (end_ns - min(spans)[0]) / NS_PER_MS,
        "comm_hidden_ms": union_length(hidden) / NS_PER_MS,
        "last_bucket_at_ns": last,
    }


def union_length(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals [begin, end), where begin >= 0."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total
