import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from project import PARAMS_FILE, set_params
from report_inputs import provenance_of

from minitrain.analysis.account import account, ddp_says, means
from minitrain.analysis.stragglers import find_stragglers
from minitrain.core.files import read_json, write_json, write_jsonl
from minitrain.train.clock import kind_of_step
from stages import timing

NUM_STEPS, WARMUP = 30, 12
RUNS = {"gloo-1": 1, "gloo-2": 2}


def step(number: int, rank: int) -> dict[str, Any]:
    """A step; during the warm-up, everything takes 100 times as long."""
    slow = 100 if number < WARMUP else 1
    row = {
        "data_ms": 1.0,
        "forward_ms": 20.0 + number % 3,
        "backward_ms": 70.0 + number % 5,
        "to_last_bucket_ms": 60.0,
        "comm_exposed_ms": 10.0,
        "comm_total_ms": 12.0,
        "comm_hidden_ms": 2.0,
        "comm_span_ms": 15.0,
        "other_ms": 0.5,
        "optimizer_ms": 4.0,
        "step_ms": 97.0 + number % 3,
        "ddp_forward_ms": 19.0,
        "ddp_backward_ms": 69.0,
        "ddp_backward_compute_ms": 58.0,
        "ddp_comm_ms": 14.0 * slow,
    }
    if kind_of_step(number) == "bracketed":
        row["backward_compute_ms"] = 55.0 + number % 4
    times = {name: slow * value for name, value in row.items()}
    return {
        **times,
        "step": number,
        "rank": rank,
        "kind": kind_of_step(number),
        "recorded": number in (0, 1, 2, 20),
        "after_interruption": number == 25,
        "tokens": 50,
        "last_bucket_at_ns": 10**9 * (number + 1) + slow * rank * 1000,
    }


def rows_of(world_size: int) -> list[dict[str, Any]]:
    return [step(n, rank) for n in range(NUM_STEPS) for rank in range(world_size)]


def write_run(
    folder: Path, world_size: int, rows: list[dict[str, Any]], **changes: Any
) -> None:
    """Write the timings of a run, and its provenance with ``changes``."""
    origin = provenance_of(world_size, num_steps=NUM_STEPS, **changes)
    write_json(folder / "provenance.json", origin)
    write_jsonl(folder / "timings.jsonl", rows)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with all inputs of the stage."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(PARAMS_FILE, tmp_path)
    steps = {"train.num_steps": NUM_STEPS, "train.num_warmup_steps": WARMUP}
    set_params(tmp_path, steps)
    for run, world_size in RUNS.items():
        write_run(Path("data/runs", run), world_size, rows_of(world_size))


def timed_runs() -> dict[str, Any]:
    timing.main()
    return read_json(Path("metrics/timing.json"))


def test_run_on_a_busy_machine_is_marked() -> None:
    load = {"others_share": 0.4, "steal_share": 0.0}
    write_run(Path("data/runs/gloo-2"), 2, rows_of(2), load=load)
    assert {run: of["machine_busy"] for run, of in timed_runs().items()} == {
        "gloo-1": None,
        "gloo-2": "other processes used 40 % of the CPU",
    }
    parts = pd.read_csv("metrics/account.csv").groupby("run")["mean_ms"]
    assert parts.count()["gloo-1"] > 0
    assert parts.count()["gloo-2"] == 0


def test_no_step_of_the_warm_up_is_in_any_number() -> None:
    written = timed_runs()
    intervals = pd.read_csv("metrics/account.csv")
    for run, world_size in RUNS.items():
        rows = pd.DataFrame(rows_of(world_size))
        late = rows[rows["step"] >= WARMUP]
        # as without a warm-up
        assert written[run]["account"] == means(account(late, 0))
        assert written[run]["ddp_says"] == ddp_says(late, 0)
        assert written[run]["stragglers"] == find_stragglers(late, 0).numbers()
        assert written[run]["peak_memory_mb"] == 310.0
        # 12 to 29 without the bracketed 14, 19, 24 and 29, the steps after these, the
        # hashed 20, and 21
        assert written[run]["num_steps_summarized"] == 10
        assert written[run]["step_p95_ms"] < 100
        assert written[run]["account"]["forward_ms"] < 30
        assert intervals[intervals["run"] == run]["high_ms"].max() < 100


def test_strategy_says_which_steps_tell_of_stragglers() -> None:
    # under hierarchical only bracketed ones: 14, 19, 24, 29
    for sync, steps, why in (
        ("ddp", 10, None),
        ("hierarchical", 4, "4 steps are too few, at least 8 are needed"),
    ):
        write_run(Path("data/runs/gloo-2"), 2, rows_of(2), sync=sync)
        told = timed_runs()["gloo-2"]["stragglers"]
        assert (told["num_steps"], told["undecided"]) == (steps, why)
