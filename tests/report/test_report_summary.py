"""The numbers that branches are compared by."""

from typing import Any

import pytest
from report_inputs import ladder_of, provenance_of, results, rung, timing_of

from minitrain.report.results import Results
from minitrain.report.summary import summary
from minitrain.report.words import find


def told(measured: Results) -> dict[str, Any]:
    return summary(measured, find(measured))


def test_summary_holds_what_branches_can_be_compared_by() -> None:
    """No speeds of runs that were made one after the other."""
    ladders = {"gloo-1": ladder_of(1), "gloo-2": ladder_of(2) | {"verdict": "proven"}}
    measured = results([1, 2], equivalence=ladders)
    found = told(measured)
    assert list(found) == ["noise_floor", "gloo-1", "gloo-2"]
    assert found["noise_floor"] == round(measured.baseline.noise_floor(), 3)
    loss = measured.losses["gloo-2"]["loss"].iloc[-1]
    speedup = found["gloo-2"].pop("speedup")
    # 16,400 over 10,000 tokens per second, but for noise
    assert speedup == pytest.approx(1.64, rel=0.01)
    assert found["gloo-2"] == {
        "verdict": "proven",
        "loss": round(loss, 6),
        "gap_billionths": 3100.0,
    }


def test_every_world_size_has_a_ratio_of_the_same_name() -> None:
    found = told(results([1, 2, 4]))
    speedups = [found[run].get("speedup") for run in ("gloo-1", "gloo-2", "gloo-4")]
    assert speedups == [
        None,
        pytest.approx(1.64, rel=0.01),
        pytest.approx(1.55, rel=0.01),
    ]


def test_one_process_has_no_gap_to_itself_and_no_speedup() -> None:
    """Undefined, so not there, where other processes are what is measured."""
    assert list(told(results([1, 2]))["gloo-1"]) == ["verdict", "loss"]
    # alone it is: DDP in one process has its price
    alone = told(results([1]))["gloo-1"]
    assert alone["speedup"] == pytest.approx(0.99, rel=0.01)
    assert "gap_billionths" not in alone


def test_a_run_that_no_arm_repeats_has_no_speedup() -> None:
    """The baseline has gloo alone."""
    runs = {"gloo-1": 1, "nccl-1": 1}
    plain = results([1])
    measured = results(
        [1],
        timing={run: timing_of(1) for run in runs},
        equivalence={run: ladder_of(1) for run in runs},
        losses=dict.fromkeys(runs, plain.losses["gloo-1"]),
        provenance={run: provenance_of(1) for run in runs},
    )
    found = told(measured)
    assert "speedup" in found["gloo-1"]
    assert "speedup" not in found["nccl-1"]


def test_gap_is_that_of_the_ladder() -> None:
    # 2.55e-8 is 25.5 billionths
    rungs = {"one_process": rung("within tolerance", 9, 2.55e-8)}
    measured = results([2], equivalence={"gloo-2": ladder_of(2) | rungs})
    assert told(measured)["gloo-2"]["gap_billionths"] == 25.5


def test_busy_machine_has_no_speedup() -> None:
    taken = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})
    found = told(results([2], baseline_provenance=taken))
    assert found["gloo-2"]["speedup"] is None
    assert found["gloo-2"]["verdict"] == "undecided"
