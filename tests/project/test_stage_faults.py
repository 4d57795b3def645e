"""A fault in the files between two stages, and the next stage must refuse it.

On healthy data a stage that compares a file with itself looks like one that compares.
All share one small run; each spoils a copy of it and runs only what comes after.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mutated import (
    EQUIVALENCE,
    PIPELINE,
    REPLAY_2,
    VERIFY_2,
    Outcome,
    of_size,
    run_stages,
)
from thorough import thorough_after

from minitrain.core.files import read_json, read_jsonl, write_json, write_jsonl
from minitrain.train.step_record import load_tensors, save_tensors

# a fault in a stage escapes all other quick tests
pytestmark = pytest.mark.quick
RUN = "data/runs/gloo-2"
REPLAYED = "data/runs/replay-2"
EVIDENCE = "data/evidence/gloo-2"
TIMING = ["timing"]


@pytest.fixture
def copy(made_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be spoilt."""
    return Path(shutil.copytree(made_run, tmp_path / "copy", symlinks=True))


@pytest.fixture
def after(stages_by_fork: str, copy: Path) -> Callable[..., Outcome]:
    """Run these stages on the spoilt copy."""
    return lambda *stages: run_stages(stages_by_fork, copy, stages)


def flip_a_bit(path: Path, tensor: str = "norm.bias") -> None:
    """The lowest bit of the last element."""
    state = load_tensors(path)
    flat = state[tensor].view(-1).view(torch.int32)
    flat[-1] ^= 1
    save_tensors(path, state)


def alter_hash(path: Path, what: str, rank: int, step: int = 2) -> None:
    rows = read_jsonl(path)
    place = ("tensors", rank, step)
    (row,) = (r for r in rows if (r["kind"], r.get("rank"), r.get("step")) == place)
    name = next(iter(row[what]))
    row[what][name] = row[what][name][::-1]
    write_jsonl(path, rows)


def breached(copy: Path, name: str = "gloo-2") -> set[str]:
    """Rungs of that run which equivalence calls a breach."""
    found = read_json(copy / "metrics/equivalence.json")[name].items()
    rungs = {name: rung["verdict"] for name, rung in found if isinstance(rung, dict)}
    return {name for name, verdict in rungs.items() if verdict == "breach"}


def assert_refused(outcome: Outcome, copy: Path, *rungs: str) -> None:
    assert (outcome.place, outcome.code) == ("equivalence", 1), outcome.output
    assert "gloo-2" in outcome.line
    assert {*rungs} <= breached(copy)


def test_nothing_is_refused_where_nothing_was_changed(after, copy: Path) -> None:
    outcome = after(*PIPELINE[4:])
    assert outcome.code == 0, outcome.output
    assert breached(copy) == set()


@pytest.mark.parametrize("rank", thorough_after(1, [1, 0]))
def test_state_of_one_rank(after, copy: Path, rank: int) -> None:
    flip_a_bit(copy / RUN / f"states/state-rank-{rank}.pt")
    rungs = ["ranks", "replay"] if rank == 0 else ["ranks"]
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, *rungs)
    found = read_json(copy / EVIDENCE / "evidence.json")["rungs"]["ranks"]
    assert found["max_ulp"] == 1
    assert found["detail"].endswith(": tensor norm.bias differs")


def test_state_of_the_replay(after, copy: Path) -> None:
    flip_a_bit(copy / REPLAYED / "state.pt")
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, "replay")


HASHES = [
    *((RUN, 1, "parameters"), (REPLAYED, 0, "gradients")),
    *((RUN, 0, "gradients"), (REPLAYED, 1, "parameters")),
]


@pytest.mark.parametrize(("where", "rank", "what"), thorough_after(2, HASHES))
def test_hash(after, copy: Path, where: str, rank: int, what: str) -> None:
    alter_hash(copy / where / "hashes.jsonl", what, rank)
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, f"replay_{what}")


Rows = list[dict[str, Any]]


def without_a_rank(rows: Rows) -> Rows:
    return [row for row in rows if row.get("rank") != 1]


def without_a_step(rows: Rows) -> Rows:
    return [r for r in rows if (r["kind"], r.get("step")) != ("tensors", 2)]


def other_samples(rows: Rows) -> Rows:
    batch = next(row for row in rows if (row["kind"], row.get("step")) == ("batch", 4))
    batch["sha256"] = batch["sha256"][::-1]
    return rows


ROWS = {
    without_a_rank: ["replay_gradients", "replay_parameters"],
    without_a_step: ["replay_gradients"],
    other_samples: ["data"],
}
IN_EACH = [(where, how) for where in (RUN, REPLAYED) for how in ROWS]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "how"), thorough_after(len(ROWS), IN_EACH))
def test_rows_that_are_missing_or_others(
    after, copy: Path, where: str, how: Callable[[Rows], Rows]
) -> None:
    path = copy / where / "hashes.jsonl"
    before = path.read_bytes()
    write_jsonl(path, how(read_jsonl(path)))
    assert path.read_bytes() != before
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, *ROWS[how])


def test_loss_of_one_step(after, copy: Path) -> None:
    """Changed by a hundredth, at a step that the witness recomputes."""
    path = copy / RUN / "losses.csv"
    head, first, *rest = path.read_text().splitlines()
    loss = float(first.partition(",")[2]) + 0.05
    path.write_text("\n".join([head, f"0,{loss!r}", *rest]) + "\n")
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, "witness_loss")


def test_breach_that_verify_found(after, copy: Path) -> None:
    path = copy / EVIDENCE / "evidence.json"
    evidence = read_json(path)
    injected = {"bytes_equal": False, "max_ulp": 7, "max_abs_diff": 0.5}
    injected |= {"verdict": "breach", "detail": "injected"}
    evidence["rungs"]["ranks"] = injected
    write_json(path, evidence)
    outcome = after(EQUIVALENCE)
    assert_refused(outcome, copy, "ranks")
    assert "injected" in outcome.line
    metrics = copy / "metrics"
    assert read_json(metrics / "equivalence.json")["gloo-2"]["ranks"] == injected
    assert "injected" in read_json(metrics / "summary.json")["breach"]
    assert "injected" in (metrics / "report.md").read_text()


@pytest.mark.parametrize(
    ("file", "prefix", "rung"),
    [
        ("sampled.pt", "0/gradients/", "one_process_gradients"),
        ("sampled.pt", "early/state/", "one_process_early"),
        ("state.pt", "", "one_process"),
    ],
)
def test_evidence_far_from_one_process(
    after, copy: Path, file: str, prefix: str, rung: str
) -> None:
    path = copy / EVIDENCE / file
    tensors = load_tensors(path)
    # a hundredth, and of all elements: no rounding does that
    far = {n: 1.01 * t for n, t in tensors.items() if n.startswith(prefix)}
    assert far
    save_tensors(path, {**tensors, **far})
    assert_refused(after(EQUIVALENCE), copy, rung)


def test_replay_does_not_copy_the_state(after, copy: Path) -> None:
    """The state of the run must not affect the replay."""
    flip_a_bit(copy / RUN / "states/state-rank-0.pt")
    flip_a_bit(copy / RUN / "states/state-rank-1.pt")
    before = (copy / REPLAYED / "state.pt").read_bytes()
    assert_refused(after(REPLAY_2, VERIFY_2, EQUIVALENCE), copy, "replay")
    assert (copy / REPLAYED / "state.pt").read_bytes() == before


def test_replay_does_not_copy_the_hashes(after, copy: Path) -> None:
    for rank in (0, 1):
        alter_hash(copy / RUN / "hashes.jsonl", "parameters", rank)
    before = (copy / REPLAYED / "hashes.jsonl").read_bytes()
    outcome = after(REPLAY_2, VERIFY_2, EQUIVALENCE)
    assert_refused(outcome, copy, "replay_parameters")
    assert (copy / REPLAYED / "hashes.jsonl").read_bytes() == before


@pytest.mark.slow
def test_breach_of_one_run_is_not_hidden_by_the_other(after, copy: Path) -> None:
    flip_a_bit(copy / "data/runs/replay-1/state.pt")
    outcome = after(of_size(1)[2], EQUIVALENCE)
    assert (outcome.place, outcome.code) == ("equivalence", 1)
    assert breached(copy, "gloo-1") == {"replay"}
    assert breached(copy, "gloo-2") == set()


def test_slow_warm_up_is_not_summarized(after, copy: Path) -> None:
    """Steps before num_warmup_steps (2) leave no trace in the summary."""
    clean = json.loads((copy / "metrics/timing.json").read_text())
    for name in ("gloo-1", "gloo-2"):
        path = copy / f"data/runs/{name}/timings.jsonl"
        write_jsonl(path, [slower(row) for row in read_jsonl(path)])
    outcome = after(TIMING)
    assert outcome.code == 0, outcome.output
    assert json.loads((copy / "metrics/timing.json").read_text()) == clean


def slower(row: dict[str, Any]) -> dict[str, Any]:
    if row["step"] >= 2:
        return row
    times = {key: 1000 * row[key] for key in row if key.endswith("_ms")}
    # hashed steps are left out anyway
    return {**row, **times, "recorded": False}


MADE_BY_RUNS = ("hashes.jsonl", "losses.csv", "machine.json")
SHARDS = ("rank-0.tokens.npy", "rank-0.offsets.npy", "targets.npy")
READ: list[tuple[str, list[str]]] = [
    ("data/corpus.jsonl", ["shard"]),
    ("data/corpus.jsonl", VERIFY_2),
    *((f"data/shards/world-2/{name}", REPLAY_2) for name in SHARDS),
    (f"{RUN}/hashes.jsonl", REPLAY_2),
    *((f"{RUN}/{name}", VERIFY_2) for name in (*MADE_BY_RUNS, "sampled.pt")),
    (f"{RUN}/states/state-rank-1.pt", VERIFY_2),
    *((f"{REPLAYED}/{name}", VERIFY_2) for name in (*MADE_BY_RUNS, "state.pt")),
    (f"{EVIDENCE}/evidence.json", EQUIVALENCE),
    *((f"{EVIDENCE}/{name}", EQUIVALENCE) for name in (*MADE_BY_RUNS, "sampled.pt")),
    (f"{EVIDENCE}/state.pt", EQUIVALENCE),
    (f"{RUN}/provenance.json", TIMING),
    (f"{RUN}/timings.jsonl", TIMING),
]


@pytest.mark.slow
def test_timings_that_end_between_two_lines_are_damaged(after, copy: Path) -> None:
    path = copy / RUN / "timings.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    line = after(TIMING).line
    assert line.startswith(f"error: {RUN}/timings.jsonl: damaged, or not of this ")
    assert "not one row for each of " in line


# one file of each format, then the others
FORMATS = {Path(file).suffix: (file, stage) for file, stage in READ}
DAMAGED = [*FORMATS.values(), *(one for one in READ if one not in FORMATS.values())]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "stage"), thorough_after(len(FORMATS), DAMAGED))
def test_damaged_file_is_named_with_what_makes_it_again(
    after, copy: Path, file: str, stage: list[str]
) -> None:
    content = (copy / file).read_bytes()
    # as a full disk or a lost connection leaves it
    (copy / file).write_bytes(content[: len(content) // 2])
    outcome = after(stage)
    assert outcome.code == 2, outcome.output
    assert outcome.output.count("error: ") == 1
    assert "Traceback" not in outcome.output
    assert outcome.line.startswith(f"error: {file}: damaged, or not of this version (")
    assert "regenerate it with dvc repro" in outcome.line
