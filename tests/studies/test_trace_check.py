"""Trace checks: a correct hand-made trace, and injected faults."""

from dataclasses import replace
from typing import Any

import pytest
from chrome_trace import Trace, chrome_trace
from profiler_spans import Offset
from trace_check import problems, require_right, steps_in
from tracing import MAIN, Span, TracedRank, reductions_of

from minitrain.sync.strategy import BucketEvent

US, MS = 1000, 10**6
STEPS = (5, 6)
# spans of a step of 100 us, in us from its start
PHASES = {
    "data": (0, 10),
    "forward": (10, 30),
    "backward": (30, 70),
    "reduce": (70, 72),
    "optimizer": (72, 95),
}
LAST_GRADIENT = 65
# the profiler's clock is 7 ms behind ours, known to within half a microsecond
OFFSET = Offset(7000 * US, 500)
BUCKET = "all-reduce bucket 1 of 2 (30.0 kB, 2 tensors)"
Ranks = list[TracedRank]


def hand_made(rank: int) -> TracedRank:
    """Return two steps with two buckets each, which overlap from 55 to 60 us."""
    spans, buckets, last = [], {}, {}
    for step in STEPS:
        start = 100 * step
        behind = start - OFFSET.ns // US + 10**6
        spans.append(span("step", f"step {step}", behind, behind + 100))
        for name, (begin, end) in PHASES.items():
            spans.append(span("phase", name, behind + begin, behind + end))
        spans.append(span("op", "aten::mm", behind + 12, behind + 20))
        # rank 1 hands its first bucket over a microsecond later
        ours = (start + 10**6) * US
        first = BucketEvent(("b", "c"), 30_000, ours + (45 + rank) * US, ours + 60 * US)
        second = BucketEvent(("a",), 70_000, ours + 55 * US, ours + 71 * US)
        buckets[step] = [first, second]
        last[step] = ours + LAST_GRADIENT * US
    reductions = reductions_of(buckets)
    return TracedRank(rank, 100_000, True, spans, OFFSET, reductions, last, 3)


def span(kind: Any, name: str, begin_us: int, end_us: int) -> Span:
    return Span(kind, MAIN, name, begin_us * US, end_us * US)


def trace_of(ranks: Ranks) -> Trace:
    return chrome_trace(ranks, {"sync": "ddp"})


@pytest.fixture
def ranks() -> Ranks:
    right = [hand_made(0), hand_made(1)]
    require_right(trace_of(right))
    return right


def test_what_the_trace_tells_of_a_step(ranks: Ranks) -> None:
    step = steps_in(trace_of(ranks))[1][6]
    assert (step.rank, step.number) == (1, 6)
    assert step.lasted_ms("forward") == pytest.approx(0.020)
    # on rank 1 buckets are reduced from 46 to 71 us; communication after the last
    # gradient is exposed until all are reduced, at 72 us
    expected = {
        "comm_total_ms": 0.025,
        "comm_hidden_ms": 0.019,
        "comm_exposed_ms": 0.007,
    }
    found = step.communication()
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def with_offset(rank: TracedRank, by_ns: int) -> TracedRank:
    return replace(rank, offset=Offset(OFFSET.ns + by_ns, OFFSET.within_ns))


def moved(one: Span, by_ns: int) -> Span:
    return replace(one, begin_ns=one.begin_ns + by_ns, end_ns=one.end_ns + by_ns)


def elsewhere(rank: TracedRank, by_ns: int) -> TracedRank:
    """Shift all times of the rank, as on a host with another clock."""
    return replace(
        with_offset(rank, by_ns),
        reductions=[moved(one, by_ns) for one in rank.reductions],
        last_gradients={s: at + by_ns for s, at in rank.last_gradients.items()},
    )


def test_no_rank_waits_before_all_have_handed_over(ranks: Ranks) -> None:
    """Rank 0 reduces its first bucket at 60 us; rank 1 has handed it over by then, or
    not.
    """
    assert problems(trace_of([ranks[0], elsewhere(ranks[1], 14 * US)])) == []
    found = problems(trace_of([ranks[0], elsewhere(ranks[1], 14 * US + 1)]))
    too_early = "was reduced on a rank before all had handed it over"
    assert found == [f"step {step}: {BUCKET} {too_early}" for step in STEPS]


def test_what_the_clocks_are_not_known_to_is_forgiven(ranks: Ranks) -> None:
    # the last bucket ends at 71 us, the optimizer starts at 72, or at 70.5
    allowed, too_far = (with_offset(ranks[0], by) for by in (-1500, -1501))
    assert problems(trace_of([allowed])) == []
    found = problems(trace_of([too_far]))
    assert len(found) == len(STEPS)
    assert all("ends 0.001 ms after the optimizer began" in line for line in found)
    # an unknown clock allows no tolerance
    guessed = replace(ranks[1], offset=Offset(OFFSET.ns, 2_000_000))
    found = problems(trace_of([ranks[0], guessed]))
    assert found == ["rank 1: clocks only known to 2.0 ms"]


def change(rank: TracedRank, which: str, **changes: Any) -> TracedRank:
    """Change the first span or bucket of that name."""
    spans, reductions = list(rank.spans), list(rank.reductions)
    for found in (spans, reductions):
        for index, one in enumerate(found):
            if one.name.startswith(which):
                found[index] = replace(one, **changes)
                return replace(rank, spans=spans, reductions=reductions)
    raise AssertionError(which)


def without(rank: TracedRank, name: str) -> TracedRank:
    spans = [one for one in rank.spans if not one.name.startswith(name)]
    reductions = [one for one in rank.reductions if not one.name.startswith(name)]
    return replace(rank, spans=spans, reductions=reductions)


FEWER = {"step": 5, "bucket": 1, "bytes": 29_996, "parameters": ["b"]}


def test_a_fault_of_a_rank_is_seen(ranks: Ranks) -> None:
    first, second = ranks
    backward = next(one for one in second.spans if one.name == "backward")
    across = backward.begin_ns + US
    phases = "rank 1, step 5: its phases are data, forward, backward, optimizer"
    lies = "rank 1: aten::mm lies across forward"
    fewer = "rank 1, step 5: buckets of 99996 bytes, and gradients of 100000"
    for spoilt, expected in [
        (without(second, "reduce"), phases),
        (without(second, "step 6"), "rank 1: has steps [5], the first rank [5, 6]"),
        (without(second, "all-reduce bucket 2"), "rank 1: has other buckets than the"),
        (change(second, "aten::mm", end_ns=across), lies),
        (change(second, "all-reduce bucket 1", args=FEWER), fewer),
    ]:
        found = problems(trace_of([first, spoilt]))
        assert found
        assert found[0].startswith(expected)
