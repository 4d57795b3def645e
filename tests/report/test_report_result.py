"""README's result: the numbers of its files, in the words of the arms."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_inputs import on_two_hosts, results

from minitrain.core.provenance import code_sha256
from minitrain.report.manifest import manifest
from minitrain.report.result import result_block, write_result
from minitrain.report.words import find

SCALING = pd.DataFrame(
    [
        ("one_process", 1, 1, 1000.4),
        ("gloo-2", 2, 1, 1500.0),
        ("gloo-2-no-sync", 2, 1, 1700.0),
        ("gloo-2-again", 2, 1, 1499.0),
        ("gloo-2-timed", 2, 1, 1498.0),
    ],
    columns=["arm", "processes", "threads", "tokens_per_s_p50"],
)
WHOLE = {"max_abs_diff": 7.1e-7, "verdict": "within tolerance"}


def block(
    sync: str = "ddp",
    reduced: float | None = 4.25,
    machine_busy: str | None = None,
    **ladder: Any,
) -> tuple[str, str]:
    """The block for a run of two, and the same in one line."""
    summary = {
        "world_size": 2,
        "model_params": 1234,
        "steps": 100,
        "sync": sync,
        "num_rounds": 20,
        "machine_busy": machine_busy,
        "noise_floor": 0.012,
        "baseline_measured_at": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "A CPU", "cores": 2, "torch": "2.13.0"},
    }
    timing = {"gloo-2": {"allreduce_p50_ms": reduced}}
    rungs = {"one_process": WHOLE} | ladder
    made = result_block(summary, timing, {"gloo-2": rungs}, SCALING)
    return made, " ".join(made.split())


def test_numbers_of_the_files() -> None:
    made, line = block(verdict="proven")
    assert "| one process | 1 | 1 | 1,000 | - | - |" in made
    assert "| 2 processes, DDP | 2 | 1 | 1,500 | proven | 4.2 ms |" in made
    assert "| 1,700 | - | - |" in made
    # the twins
    assert "1,499" not in made
    assert "1,498" not in made
    assert "2026-01-02: A CPU, 2 cores" in made
    assert "the largest difference of a number, is 7.1e-07: within tolerance.*" in made
    assert (
        "Identical arms (1 pair) differed by up to 1.2 %: less counts as none." in line
    )
    assert (
        "The all-reduce is the time from handing gradients over to having them reduced "
        "in a step of the training run (median), waiting for the other rank included."
        in line
    )
    assert max(map(len, made.splitlines()[-8:])) <= 88


def test_a_busy_machine_is_named() -> None:
    _, line = block(machine_busy="others took 40 % of its cores")
    assert "so no speed is judged: others took 40 % of its cores." in line
    assert "busy" not in block()[1]


@pytest.mark.parametrize("verdict", ["proven", "replay only", "undecided", "breach"])
def test_verdict_is_that_of_the_evidence(verdict: str) -> None:
    assert f"| 1,500 | {verdict} | 4.2 ms |" in block(verdict=verdict)[0]


def test_without_a_verdict_nothing_is_decided() -> None:
    made, _ = block(replay={"bytes_equal": True}, ranks={"bytes_equal": True})
    assert "| 1,500 | undecided | 4.2 ms |" in made


def test_strategy_is_named_and_what_was_not_measured_is_not() -> None:
    made, _ = block("shm", None, one_process=WHOLE | {"max_abs_diff": None})
    assert "| 2 processes, shm | 2 | 1 | 1,500 | undecided | - |" in made
    assert "DDP" not in made
    assert "gap" not in made
    assert made.endswith("included.*\n")


def test_all_reduce_of_two_hosts_stands_beside_no_speed_of_one() -> None:
    measured = on_two_hosts(results([1, 2]), "gloo-2")
    equivalence = {"gloo-2": {"one_process": WHOLE, "verdict": "proven"}}
    published = manifest(measured, find(measured))
    made = result_block(published, measured.timing, equivalence, SCALING)
    assert "| 2 processes, DDP | 2 | 1 | 1,500 | proven (2 hosts) | - |" in made
    line = " ".join(made.split())
    alone = "Speeds are of one host; of gloo-2 (2 hosts) the verdict alone stands"
    assert alone in line
    assert (
        "The gap between the final state of gloo-2 (2 hosts) and that of one process"
        in line
    )
    assert max(map(len, made.splitlines()[-10:])) <= 88
    assert "host" not in block()[0]


def test_breach_stands_in_the_place_of_a_result() -> None:
    said = {"verdict": "breach", "lesson_notes": "Breach: gloo-2: ranks: a|b."}
    made = result_block(said, {}, {}, SCALING)
    assert made.startswith("**Breach: gloo-2: ranks: a\\|b.**\n")
    assert "1,000" not in made


MARKED = (
    "# T\n<!-- result -->\nold\n<!-- /result -->\n<!-- made-by -->\n<!-- /made-by -->\n"
)


def test_readme_gets_the_result_and_who_made_it(tmp_path: Path) -> None:
    measured = results([1, 2])
    published = manifest(measured, find(measured))
    readme = tmp_path / "README.md"
    readme.write_text(MARKED)
    scaling = measured.baseline.scaling().round(1)
    write_result(readme, measured, published, scaling)
    table = result_block(published, measured.timing, measured.equivalence, scaling)
    text = readme.read_text()
    assert text.startswith(f"# T\n<!-- result -->\n{table}<!-- /result -->\n")
    assert f"- `train.py`: made by code {'ab' * 6}. Measured on 2026-01-02" in text
    # no stage in this folder has that code
    assert code_sha256(tmp_path / "stages/train.py") is None
    assert "Newer code may give other numbers: `make` measures again." in text
