"""Traces of all ranks in one file for Perfetto and chrome://tracing.

Chrome's "Trace Event Format" (JSON): a process per rank, a thread per track, times in
microseconds from the first event.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracing import MAIN, Span, TracedRank

from minitrain.core.files import open_atomic, reading

Event = dict[str, Any]
Trace = dict[str, Any]
# thread ids of a rank, distinct from those of other ranks and from process ids
TIDS_OF_A_RANK = 1000
LAST_GRADIENT = "last gradient"


def chrome_trace(ranks: Sequence[TracedRank], about: Mapping[str, Any]) -> Trace:
    """Merge the traces of all ``ranks``. ``about`` is stored as ``otherData``, with the
    bytes of all gradients, whether the all-reduces cover them (``reduces``), the
    uncertainty of each rank's clock offset, and the number of ops omitted.
    """
    spans = {one.rank: [*on_our_clock(one), *one.reductions] for one in ranks}
    start = min(span.begin_ns for found in spans.values() for span in found)
    events: list[Event] = []
    for one in ranks:
        events += _events_of(one.rank, spans[one.rank], one.last_gradients, start)
    own = {
        "gradient_bytes": ranks[0].gradient_bytes,
        "reduces": ranks[0].reduces,
        "clock_within_us": {str(r.rank): r.offset.within_ns / 1000 for r in ranks},
        "ops_left_out": {str(r.rank): r.num_left_out for r in ranks},
    }
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {**about, **own},
    }


def on_our_clock(rank: TracedRank) -> list[Span]:
    """Convert the profiler's events of ``rank`` to ``perf_counter_ns``."""
    by = rank.offset.ns
    return [
        replace(span, begin_ns=span.begin_ns + by, end_ns=span.end_ns + by)
        for span in rank.spans
    ]


def _events_of(
    rank: int, spans: Sequence[Span], last_gradients: Mapping[int, int], start: int
) -> Iterator[Event]:
    tracks = sorted({MAIN, *(span.track for span in spans)}, key=_order)
    tids = {track: TIDS_OF_A_RANK * (rank + 1) + i for i, track in enumerate(tracks)}
    yield _about("process_name", rank, tids[MAIN], name=f"rank {rank}")
    yield _about("process_sort_index", rank, tids[MAIN], sort_index=rank)
    for index, (track, tid) in enumerate(tids.items()):
        yield _about("thread_name", rank, tid, name=track)
        yield _about("thread_sort_index", rank, tid, sort_index=index)
    for step, at in last_gradients.items():
        yield {
            "name": LAST_GRADIENT,
            "ph": "i",
            # thread scope, so that the viewer does not draw it across all threads
            "s": "t",
            "ts": (at - start) / 1000,
            "pid": rank,
            "tid": tids[MAIN],
            "args": {"step": step},
        }
    # enclosing spans first, even with equal start times
    for span in sorted(spans, key=lambda one: (one.begin_ns, -one.end_ns)):
        event = {
            "name": span.name,
            "cat": span.kind,
            "ph": "X",
            "ts": (span.begin_ns - start) / 1000,
            "dur": (span.end_ns - span.begin_ns) / 1000,
            "pid": rank,
            "tid": tids[span.track],
        }
        yield {**event, "args": span.args} if span.args else event


def _order(track: str) -> tuple[int, str]:
    # computation first, then communication
    kinds = (MAIN, "all-reduce")
    first = [i for i, kind in enumerate(kinds) if track.startswith(kind)]
    return (first[0] if first else len(kinds)), track


def _about(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def write_trace(path: Path, trace: Trace) -> None:
    """Write ``trace`` as gzipped JSON, deterministically."""
    text = json.dumps(trace, separators=(",", ":"), allow_nan=False)
    with open_atomic(path, "wb") as file:
        # without gzip's timestamp
        file.write(gzip.compress(text.encode(), mtime=0))


def read_trace(path: Path) -> Trace:
    """Read a file written by :func:`write_trace`; raises UserError if it is damaged."""
    with reading(path):
        trace: Trace = json.loads(gzip.decompress(path.read_bytes()))
        if "traceEvents" not in trace:
            raise ValueError("no traceEvents")
    return trace
