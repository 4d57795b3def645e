"""Consistency check of a trace, and its summary by step.

Both read only the trace, as a viewer does.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from chrome_trace import LAST_GRADIENT, Event, Trace

from minitrain.core.errors import EvidenceError
from minitrain.sync.strategy import BucketEvent, SyncTrace
from minitrain.train.clock import NS_PER_MS, bucket_times

# first letters of the phases of a step, in order
PHASES = re.compile("d(fbr)+o")
# duration of a small model's all-reduce; with a larger uncertainty of the clocks, a
# trace is not readable
WORST_CLOCK_NS = 1_000_000
NEEDED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "i": {"name", "ts", "pid", "tid"},
    "M": {"name", "pid", "tid", "args"},
}


class TracedStep:
    """Step of one rank with its ``events``."""

    def __init__(self, span: Event, events: Sequence[Event]) -> None:
        self.span, self.rank = span, span["pid"]
        self.number = int(span["name"].split()[1])
        phases = [e for e in events if e.get("cat") == "phase" and _holds(span, e)]
        self.phases = sorted(phases, key=begin_ns)
        own = [e for e in events if e.get("args", {}).get("step") == self.number]
        reductions = [e for e in own if e.get("cat") == "all-reduce"]
        self.reductions = {e["args"]["bucket"]: e for e in reductions}
        moments = [begin_ns(e) for e in own if e["name"] == LAST_GRADIENT]
        self.last_gradient_ns: int | None = moments[0] if moments else None

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.number}"

    def problems(
        self, within_ns: int, gradient_bytes: int, reduces: bool
    ) -> Iterator[str]:
        """Return the problems of this step, given clocks of its rank accurate to
        ``within_ns``; ``reduces``: all gradients must be reduced, else there may be no
        all-reduce.
        """
        names = [phase["name"] for phase in self.phases]
        if not PHASES.fullmatch("".join(name[0] for name in names)):
            yield f"{self}: its phases are {', '.join(names) or 'missing'}"
            return
        first = next(begin_ns(p) for p in self.phases if p["name"] == "backward")
        last = begin_ns(self.phases[-1])
        for one in self.reductions.values():
            early = first - begin_ns(one)
            late = end_ns(one) - last
            if early > within_ns:
                by = f"{early / NS_PER_MS:.3f} ms before backward"
                yield f"{self}: {one['name']} begins {by}"
            if late > within_ns:
                by = f"{late / NS_PER_MS:.3f} ms after the optimizer began"
                yield f"{self}: {one['name']} ends {by}"
        sent = sum(one["args"]["bytes"] for one in self.reductions.values())
        if (self.reductions or reduces) and sent != gradient_bytes:
            yield f"{self}: buckets of {sent} bytes, and gradients of {gradient_bytes}"

    def lasted_ms(self, phase: str) -> float:
        """Return the total milliseconds of all phases with that name."""
        return sum(p["dur"] for p in self.phases if p["name"] == phase) / 1000

    def communication(self) -> dict[str, float]:
        """Return :func:`~minitrain.train.clock.bucket_times` of its all-reduces, in
        milliseconds; empty without any.
        """
        ends = [(begin_ns(e), end_ns(e)) for e in self.reductions.values()]
        buckets = [BucketEvent((), 0, *each) for each in ends]
        seen = SyncTrace(buckets, computed_ns=self.last_gradient_ns)
        backward = self.lasted_ms("backward") + self.lasted_ms("reduce")
        return bucket_times(seen, backward, end_ns(self.phases[-2]))


def begin_ns(event: Event) -> int:
    """Return the start of an event."""
    return round(1000 * event["ts"])


def end_ns(event: Event) -> int:
    """Return the end of an event."""
    return begin_ns(event) + round(1000 * event["dur"])


def steps_in(trace: Trace) -> dict[int, dict[int, TracedStep]]:
    """Return the steps of each rank by number."""
    by_rank: dict[int, list[Event]] = {}
    for event in trace["traceEvents"]:
        by_rank.setdefault(event["pid"], []).append(event)
    found: dict[int, dict[int, TracedStep]] = {}
    for rank, events in sorted(by_rank.items()):
        spans = [event for event in events if event.get("cat") == "step"]
        steps = [TracedStep(span, events) for span in spans]
        found[rank] = {step.number: step for step in steps}
    return found


def require_right(trace: Trace) -> None:
    """Raise EvidenceError with the first of the :func:`problems` of ``trace``."""
    if found := problems(trace):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise EvidenceError(f"trace: {found[0]}{more}")


def problems(trace: Trace) -> list[str]:
    """Yield the problems of ``trace``, one line each.

    It must be valid for viewers, with nested spans. Each step must have its phases in
    order, and all-reduces of all gradients between backward and the optimizer, to the
    accuracy of the clocks; all-reduces may be missing if the trace declares it. On no
    rank may a bucket be reduced before all ranks have handed it over, or a step end
    before all have started it.
    """
    if found := [*_malformed(trace)]:
        return found
    ranks = steps_in(trace)
    if found := [*_unlike_ranks(trace, ranks)]:
        return found
    about = trace["otherData"]
    for rank, steps in ranks.items():
        within = round(1000 * about["clock_within_us"][str(rank)])
        if within > WORST_CLOCK_NS:
            found.append(f"rank {rank}: clocks only known to {within / NS_PER_MS} ms")
        for step in steps.values():
            found += step.problems(within, about["gradient_bytes"], about["reduces"])
    return [*_across(trace), *found, *_too_early(ranks)]


def _malformed(trace: Trace) -> Iterator[str]:
    for index, event in enumerate(trace["traceEvents"]):
        where, needed = f"event {index}", NEEDED.get(event.get("ph"))
        if needed is None:
            yield f"{where}: ph = {event.get('ph')!r}"
        elif missing := needed - event.keys():
            yield f"{where}: no {min(missing)}"
        else:
            values = {key: event[key] for key in ("ts", "dur") if key in event}
            wrong = {key: value for key, value in values.items() if not _time(value)}
            wrong |= {k: event[k] for k in ("pid", "tid") if type(event[k]) is not int}
            for key, value in wrong.items():
                yield f"{where}, {event['name']}: {key} = {value!r}"


def _time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _unlike_ranks(
    trace: Trace, ranks: dict[int, dict[int, TracedStep]]
) -> Iterator[str]:
    about = [e for e in trace["traceEvents"] if e["name"] == "process_name"]
    names = {event["pid"]: event["args"]["name"] for event in about}
    first = next(iter(ranks.values()), {})
    for rank, steps in ranks.items():
        if names.get(rank) != f"rank {rank}":
            yield f"process {rank}: its name is {names.get(rank)!r}"
        if not steps or steps.keys() != first.keys():
            yield f"rank {rank}: has steps {[*steps]}, the first rank {[*first]}"
        elif [s.reductions.keys() for s in steps.values()] != [
            s.reductions.keys() for s in first.values()
        ]:
            yield f"rank {rank}: has other buckets than the first rank"


def _across(trace: Trace) -> Iterator[str]:
    """Yield spans that start within another span of their thread and end after it;
    viewers drop them.
    """
    threads: dict[tuple[int, int], list[Event]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for (rank, _), events in threads.items():
        around: list[Event] = []
        for event in sorted(events, key=lambda one: (begin_ns(one), -end_ns(one))):
            while around and end_ns(around[-1]) <= begin_ns(event):
                around.pop()
            if around and not _holds(around[-1], event):
                yield f"rank {rank}: {event['name']} lies across {around[-1]['name']}"
            around.append(event)


def _holds(outer: Event, inner: Event) -> bool:
    begins = begin_ns(outer) <= begin_ns(inner)
    return begins and end_ns(inner) <= end_ns(outer)


def _too_early(ranks: dict[int, dict[int, TracedStep]]) -> Iterator[str]:
    """Yield events that reveal a wrong clock, since every rank waits for all others."""
    for steps in zip(*(found.values() for found in ranks.values()), strict=True):
        number = steps[0].number
        if not _at_once([step.span for step in steps]):
            yield f"step {number}: was over on a rank before all had begun it"
        for bucket, one in steps[0].reductions.items():
            if not _at_once([step.reductions[bucket] for step in steps]):
                too_early = "was reduced on a rank before all had handed it over"
                yield f"step {number}: {one['name']} {too_early}"


def _at_once(events: Sequence[Event]) -> bool:
    return max(map(begin_ns, events)) <= min(map(end_ns, events))
