"""Traces of real ranks: content, and alignment of spans."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from chrome_trace import Trace, chrome_trace, read_trace, write_trace
from profiler_spans import Readings, offset_of
from tiny import tiny_config, tiny_params
from torch import Tensor
from trace_check import begin_ns, end_ns, problems, steps_in
from tracing import TracedRank, trace_steps

from minitrain.comm.groups import distributed
from minitrain.core.errors import UserError
from minitrain.data.text import VOCAB_SIZE
from minitrain.harness.launcher import launch
from minitrain.model.factory import build_model
from minitrain.train.worker import Worker

pytestmark = pytest.mark.slow

FIRST, COUNT = 3, 2
STEPS = [3, 4]
# DDP with a bucket for each few parameters
MANY = {"sync": "ddp", "bucket_cap_mb": 0.005}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": MANY,
    "ddp, buckets held back": {**MANY, "overlap": False},
    "invariant": {"sync": "invariant", "logical_shards": 4},
    "fsdp": {"sync": "fsdp"},
}
MICRO_BATCHES = {"invariant": 2}
# all-reduces of a step, where they are not several
COUNTS = {"invariant": 1, "fsdp": 0}


States = list[dict[str, Tensor]]


def be_a_rank(changes: dict[str, Any], shards: Path) -> tuple[TracedRank, States]:
    torch.set_num_threads(1)
    with distributed():
        config = tiny_config(tiny_params(**changes), shards, 2)
        watched, alone = Worker(config), Worker(config)
        traced = trace_steps(watched, FIRST, COUNT, 0.0)
        alone.train(range(FIRST + COUNT))
        states = [one.sync.state_dict() for one in (watched, alone)]
        states = [{n: t.clone() for n, t in state.items()} for state in states]
        watched.close()
        alone.close()
    return traced, states


@cache
def traced_run(name: str, shards: Path) -> tuple[Trace, States]:
    """The trace of two ranks, the final state of rank 0, and that state without a
    profiler.
    """
    changes = {"global_batch_size": 24, **RUNS[name]}
    found = launch(be_a_rank, 2, changes, shards, timeout_s=120)
    return chrome_trace([rank for rank, _ in found], {"sync": "any"}), found[0][1]


@pytest.mark.parametrize("name", RUNS)
def test_a_trace_is_right_and_tracing_changes_no_bits(name: str, shards: Path) -> None:
    """For the order of phases and buckets see test_trace_check.py."""
    trace, (watched, alone) = traced_run(name, shards)
    assert problems(trace) == []
    found = steps_in(trace)
    assert [[*steps] for steps in found.values()] == [STEPS] * 2
    parameters = dict(build_model(tiny_params().model, VOCAB_SIZE).named_parameters())
    passes = ["forward", "backward", "reduce"] * MICRO_BATCHES.get(name, 1)
    for step in (step for steps in found.values() for step in steps.values()):
        names = [phase["name"] for phase in step.phases]
        assert names == ["data", *passes, "optimizer"]
        # every bucket is an all-reduce with a name
        count = len(step.reductions)
        assert count == COUNTS[name] if name in COUNTS else count > 1
        sent = step.reductions.values()
        held = [n for one in sent for n in one["args"]["parameters"]]
        assert sorted(held) == (sorted(parameters) if count else [])
    assert watched.keys() == alone.keys()
    assert all(torch.equal(watched[name], alone[name]) for name in alone)


OPS = {
    "forward": "aten::embedding",
    "backward": "aten::embedding_dense_backward",
    "optimizer": "aten::addcdiv_",
}


def test_torchs_ops_lie_in_the_phases_that_call_them(shards: Path) -> None:
    trace, _ = traced_run("ddp", shards)
    assert trace["otherData"]["ops_left_out"] == {"0": 0, "1": 0}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for rank, steps in steps_in(trace).items():
        for phase in steps[STEPS[0]].phases:
            begin, end = begin_ns(phase), end_ns(phase)
            own = [event for event in events if event["pid"] == rank]
            inside = {e["name"] for e in own if begin <= begin_ns(e) < end}
            assert OPS.get(phase["name"], phase["name"]) in inside


def test_file_is_what_was_traced(shards: Path, tmp_path: Path) -> None:
    (trace, _), path = traced_run("ddp", shards), tmp_path / "trace.json.gz"
    write_trace(path, trace)
    assert read_trace(path) == trace
    # viewers reject NaN
    json.loads(gzip.decompress(path.read_bytes()), parse_constant=pytest.fail)
    # no time of day in it: bytes 4 to 7 of the format (RFC 1952)
    assert path.read_bytes()[4:8] == bytes(4)
    path.write_bytes(gzip.compress(b"{}", mtime=0))
    with pytest.raises(UserError, match=r"trace\.json\.gz: damaged, or not of thi"):
        read_trace(path)


def test_offset_lies_between_all_readings() -> None:
    # our clock is 100 ahead: the first reading gives 95 to 130, the second 80 to 104
    readings = [Readings(1000, 1095, 1130), Readings(2000, 2080, 2104)]
    # 95 to 104: the middle, and half of it, rounded up
    assert offset_of(readings) == (99, 5)
