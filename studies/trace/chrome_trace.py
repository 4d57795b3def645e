"""The traces of all ranks as one file that Perfetto and chrome://tracing open.

The format is Chrome's ("Trace Event Format", JSON): a process for each rank, a thread
for each of its tracks, times in microseconds from the first moment that is shown.
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
# the thread numbers of a rank: no rank shares one, and none is a rank's number
TIDS_OF_A_RANK = 1000
LAST_GRADIENT = "last gradient"


def chrome_trace(ranks: Sequence[TracedRank], about: Mapping[str, Any]) -> Trace:
    """One trace of all ``ranks``. ``about`` stands in it as ``otherData``, with the
    bytes of all gradients, whether its all-reduces hold them all (``reduces``), how far
    the offset between the clocks of each rank may be wrong, and how many ops were left
    out.
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
    """What the profiler saw of ``rank``, in ``perf_counter_ns``."""
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
            # a line on its thread, and not through all of them
            "s": "t",
            "ts": (at - start) / 1000,
            "pid": rank,
            "tid": tids[MAIN],
            "args": {"step": step},
        }
    # what holds another comes first, also where both begin at once
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
    # what the rank computes, then what it sends
    kinds = (MAIN, "all-reduce")
    first = [i for i, kind in enumerate(kinds) if track.startswith(kind)]
    return (first[0] if first else len(kinds)), track


def _about(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def write_trace(path: Path, trace: Trace) -> None:
    """Write ``trace`` as gzipped JSON: the same bytes for the same trace."""
    text = json.dumps(trace, separators=(",", ":"), allow_nan=False)
    with open_atomic(path, "wb") as file:
        # without the time of day, which else stands in it
        file.write(gzip.compress(text.encode(), mtime=0))


def read_trace(path: Path) -> Trace:
    """What :func:`write_trace` wrote; UserError where it is damaged."""
    with reading(path):
        trace: Trace = json.loads(gzip.decompress(path.read_bytes()))
        if "traceEvents" not in trace:
            raise ValueError("no traceEvents")
    return trace
