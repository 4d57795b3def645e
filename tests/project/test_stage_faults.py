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
from forks import EQUIVALENCE, REPLAY_2, VERIFY_2, Outcome, of_size, run_stages

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
    return Path(shutil.copytree(made_run, tmp_path / "copy", symlinks=True))


@pytest.fixture
def after(stages_by_fork: str, copy: Path) -> Callable[..., Outcome]:
    return lambda *stages: run_stages(stages_by_fork, copy, stages)


def flip_a_bit(path: Path, tensor: str = "norm.bias") -> None:
    """The lowest bit of the last element."""
    state = load_tensors(path)
    flat = state[tensor].view(-1).view(torch.int32)
    flat[-1] ^= 1
    save_tensors(path, state)


Rows = list[dict[str, Any]]


def change_rows(run: Path, how: Callable[[Rows], None]) -> None:
    """Change the rows of a run's hashes in place."""
    path = run / "hashes.jsonl"
    before, rows = path.read_bytes(), read_jsonl(path)
    how(rows)
    write_jsonl(path, rows)
    assert path.read_bytes() != before


def other_hash(what: str, rank: int) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        place = ("tensors", rank, 2)
        keys = ("kind", "rank", "step")
        row = next(r for r in rows if (*map(r.get, keys),) == place)
        name = next(iter(row[what]))
        row[what][name] = row[what][name][::-1]

    return change


def other_samples(rows: Rows) -> None:
    batch = next(row for row in rows if (row["kind"], row.get("step")) == ("batch", 4))
    batch["sha256"] = batch["sha256"][::-1]


def breached(copy: Path, name: str = "gloo-2") -> set[str]:
    found = read_json(copy / "metrics/equivalence.json")[name].items()
    rungs = {name: rung["verdict"] for name, rung in found if isinstance(rung, dict)}
    return {name for name, verdict in rungs.items() if verdict == "breach"}


def assert_refused(outcome: Outcome, copy: Path, *rungs: str) -> None:
    """By these rungs, and by no other."""
    assert (outcome.place, outcome.code) == ("equivalence", 1), outcome.output
    assert "gloo-2" in outcome.line
    assert breached(copy) == {*rungs}


def test_nothing_is_refused_where_nothing_was_changed(after, copy: Path) -> None:
    outcome = after(VERIFY_2, EQUIVALENCE)
    assert outcome.code == 0, outcome.output
    assert breached(copy) == set()


def test_rank_replay_and_losses_that_differ(after, copy: Path) -> None:
    """Six files or rows, each of which one rung of its own must refuse."""
    flip_a_bit(copy / RUN / "states/state-rank-1.pt")
    flip_a_bit(copy / REPLAYED / "state.pt")
    change_rows(copy / REPLAYED, other_hash("gradients", rank=0))
    change_rows(copy / REPLAYED, other_hash("parameters", rank=1))
    change_rows(copy / REPLAYED, other_samples)
    # by a hundredth, at a step that the witness recomputes
    path = copy / RUN / "losses.csv"
    head, first, *rest = path.read_text().splitlines()
    loss = float(first.partition(",")[2]) + 0.05
    path.write_text("\n".join([head, f"0,{loss!r}", *rest]) + "\n")
    of_hashes = ("replay_gradients", "replay_parameters", "data")
    rungs = ("ranks", "replay", *of_hashes, "replay_losses", "witness_loss")
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, *rungs)
    found = read_json(copy / EVIDENCE / "evidence.json")["rungs"]["ranks"]
    assert found["max_ulp"] == 1
    assert found["detail"].endswith(": tensor norm.bias differs")


def test_hashes_of_the_run_that_differ(after, copy: Path) -> None:
    change_rows(copy / RUN, other_hash("gradients", rank=0))
    change_rows(copy / RUN, other_hash("parameters", rank=1))
    change_rows(copy / RUN, other_samples)
    of_replay = ("replay_gradients", "replay_parameters")
    rungs = (*of_replay, "witness_hashes", "data", "one_process_data")
    assert_refused(after(VERIFY_2, EQUIVALENCE), copy, *rungs)


def test_breach_that_verify_found(after, copy: Path) -> None:
    path = copy / EVIDENCE / "evidence.json"
    evidence = read_json(path)
    injected = {"bytes_equal": False, "max_ulp": 7, "max_abs_diff": 0.5}
    injected |= {"verdict": "breach", "detail": "injected"}
    evidence["rungs"]["ranks"] = {**injected, "reason": None}
    write_json(path, evidence)
    outcome = after(EQUIVALENCE)
    assert_refused(outcome, copy, "ranks")
    assert "injected" in outcome.line
    ladder = read_json(copy / "metrics/equivalence.json")["gloo-2"]
    assert ladder["ranks"] == injected


def test_evidence_far_from_one_process(after, copy: Path) -> None:
    for file, prefix in (
        ("sampled.pt", "0/gradients/"),
        ("sampled.pt", "early/state/"),
        ("state.pt", ""),
    ):
        path = copy / EVIDENCE / file
        tensors = load_tensors(path)
        # a hundredth, and of all elements: no rounding does that
        far = {n: 1.01 * t for n, t in tensors.items() if n.startswith(prefix)}
        assert far
        save_tensors(path, {**tensors, **far})
    rungs = ("one_process_gradients", "one_process_early", "one_process")
    assert_refused(after(EQUIVALENCE), copy, *rungs)


def test_replay_does_not_copy_the_run(after, copy: Path) -> None:
    """Neither its state nor its hashes."""
    for rank in (0, 1):
        flip_a_bit(copy / RUN / f"states/state-rank-{rank}.pt")
        change_rows(copy / RUN, other_hash("parameters", rank))
    files = [copy / REPLAYED / name for name in ("state.pt", "hashes.jsonl")]
    before = [file.read_bytes() for file in files]
    rungs = ("replay", "replay_parameters", "witness_hashes")
    assert_refused(after(REPLAY_2, VERIFY_2, EQUIVALENCE), copy, *rungs)
    assert [file.read_bytes() for file in files] == before


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


# one file of each format
DAMAGED = [
    ("data/corpus.jsonl", ["shard"]),
    ("data/shards/world-2/rank-0.tokens.npy", REPLAY_2),
    (f"{RUN}/losses.csv", VERIFY_2),
    (f"{RUN}/states/state-rank-1.pt", VERIFY_2),
    (f"{EVIDENCE}/evidence.json", EQUIVALENCE),
    (f"{RUN}/timings.jsonl", TIMING),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "stage"), DAMAGED)
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
