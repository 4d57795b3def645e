"""Trace of a few training steps on one rank: torch's profiler, and the buckets it sent.

Imported only for tracing; :mod:`chrome_trace` merges all ranks into one file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from profiler_spans import (
    PREFIX,
    Mark,
    Offset,
    PhaseMarks,
    Readings,
    offset_of,
)
from torch.profiler import ProfilerActivity, profile

from minitrain.sync.strategy import BucketEvent, num_bytes, trained
from minitrain.train.worker import Worker

MAIN = "main thread"
# prefix of the autograd engine's name for each node of the graph
NODE = "autograd::engine::evaluate_function"

Kind = Literal["op", "phase", "step", "all-reduce"]


@dataclass(frozen=True)
class Span:
    """Span on a track of a rank, with start and end in nanoseconds.

    An ``op`` was recorded by the profiler itself.
    """

    kind: Kind
    track: str
    name: str
    begin_ns: int
    end_ns: int
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TracedRank:
    """Trace of a few steps on one rank.

    ``spans`` are in the profiler's time, to which ``offset`` must be added;
    ``reductions`` and ``last_gradients`` (by step, the time from which communication is
    exposed) are in ``perf_counter_ns``. ``num_left_out`` is the number of ops too short
    to show, ``gradient_bytes`` the size of all gradients. ``reduces``: the strategy
    all-reduces each of them in every step, with times.
    """

    rank: int
    gradient_bytes: int
    reduces: bool
    spans: list[Span]
    offset: Offset
    reductions: list[Span]
    last_gradients: dict[int, int]
    num_left_out: int = 0


def trace_steps(
    worker: Worker, first_step: int, num_steps: int, shortest_us: float
) -> TracedRank:
    """Train ``worker`` up to ``first_step``, then ``num_steps`` steps under the
    profiler; call it on all ranks.

    Ops shorter than ``shortest_us`` microseconds are omitted. DDP rebuilds its buckets
    after step 0, so choose a ``first_step`` of 3 or more for its final buckets.
    """
    worker.train(range(first_step - 1))
    observer = PhaseMarks(worker)
    activities = [ProfilerActivity.CPU]
    if worker.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        # the first step under a profiler is slow, so it is not shown
        worker.train([first_step - 1])
        worker.observer = observer
        worker.train(range(first_step, first_step + num_steps))
    # a span that ends on another thread fits on neither track
    events = [event for event in profiler.events() or () if not event.is_async]
    spans = within_steps(spans_of(events))
    promises = worker.sync.guarantees.promises
    long_enough = [span for span in spans if is_long(span, shortest_us)]
    return TracedRank(
        rank=worker.rank,
        gradient_bytes=num_bytes(trained(worker.model).values()),
        reduces="reduced_once" in promises and worker.device.type == "cpu",
        spans=long_enough,
        offset=offset_of(readings_of(spans, observer.marks)),
        reductions=reductions_of(observer.buckets),
        last_gradients=observer.last_gradients,
        num_left_out=len(spans) - len(long_enough),
    )


def is_long(span: Span, shortest_us: float) -> bool:
    """Return true if ``span`` is to be shown: steps and phases always are."""
    return span.kind != "op" or span.end_ns - span.begin_ns >= 1000 * shortest_us


def spans_of(events: Iterable[Any]) -> list[Span]:
    """Convert the profiler's ``events`` (``FunctionEvent``, times in microseconds with
    three decimals) to spans, enclosing spans first, each on the track of its thread or
    GPU stream.
    """
    by_track: dict[tuple[str, int, int], list[Any]] = {}
    for event in events:
        kind = event.device_type.name
        number = event.thread if kind == "CPU" else event.device_resource_id
        by_track.setdefault((kind, event.device_index, number), []).append(event)
    spans = []
    for index, (place, found) in enumerate(sorted(by_track.items())):
        track = _track(place, {event.name for event in found}, index)
        spans += [_span(event, track) for event in found]
    return sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns))


def _track(place: tuple[str, int, int], names: set[str], index: int) -> str:
    kind, device, stream = place
    if kind != "CPU":
        return f"GPU {device}, stream {stream}"
    if any(name.startswith(PREFIX) for name in names):
        return MAIN
    # only with a GPU; else backward runs on the calling thread
    if any(name.startswith(NODE) for name in names):
        return f"backward, thread {index}"
    return f"thread {index}"


def _span(event: Any, track: str) -> Span:
    name = event.name.removeprefix(PREFIX)
    kind: Kind = "op"
    # GPU streams have copies of our spans
    if track == MAIN and name != event.name:
        kind = "step" if name.startswith("step ") else "phase"
    begin, end = event.time_range.start, event.time_range.end
    return Span(kind, track, name, round(1000 * begin), round(1000 * end))


def within_steps(spans: Sequence[Span]) -> list[Span]:
    """Return the spans between the start of the first step and the end of the last."""
    steps = [span for span in spans if span.kind == "step"]
    first, last = min(s.begin_ns for s in steps), max(s.end_ns for s in steps)
    return [s for s in spans if first <= s.begin_ns and s.end_ns <= last]


def readings_of(spans: Iterable[Span], marks: Sequence[Mark]) -> list[Readings]:
    """Return both clocks at each end of our ``spans``, whose readings are in ``marks``,
    in the same order.
    """
    own = [span for span in spans if span.kind != "op"]
    readings = []
    for span, mark in zip(own, marks, strict=True):
        assert span.name == mark.name
        readings.append(Readings(span.begin_ns, *mark.began))
        readings.append(Readings(span.end_ns, *mark.ended))
    return readings


def reductions_of(buckets: dict[int, list[BucketEvent]]) -> list[Span]:
    """Return the buckets of each step, from handover to completion; buckets without
    times (GPU) are omitted. Concurrent ones are on separate tracks.
    """
    spans: list[Span] = []
    for step, events in buckets.items():
        # end of the last bucket on each track
        free: list[int] = []
        for number, event in enumerate(events, start=1):
            if event.called_ns is None or event.done_ns is None:
                continue
            tracks = [i for i, at in enumerate(free) if at <= event.called_ns]
            index = tracks[0] if tracks else len(free)
            free[index : index + 1] = [event.done_ns]
            track = "all-reduce" if index == 0 else f"all-reduce {index + 1}"
            name = f"all-reduce bucket {number} of {len(events)} ({_amount(event)})"
            args = {
                "step": step,
                "bucket": number,
                "bytes": event.num_bytes,
                "parameters": list(event.parameters),
            }
            times = event.called_ns, event.done_ns
            spans.append(Span("all-reduce", track, name, *times, args))
    return spans


def _amount(event: BucketEvent) -> str:
    size, count = event.num_bytes, len(event.parameters)
    amount = f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
    return f"{amount}, {count} tensor{'s' * (count != 1)}"
