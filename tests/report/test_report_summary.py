"""The numbers that branches are compared by."""

from typing import Any

import pytest
from report_inputs import ladder_of, provenance_of, results, rung

from minitrain.report.summary import summary
from minitrain.report.words import find


def test_summary_holds_what_branches_can_be_compared_by() -> None:
    """No speeds of runs that were made one after the other."""
    ladders = {"gloo-1": ladder_of(1), "gloo-2": ladder_of(2) | {"verdict": "proven"}}
    measured = results([1, 2], equivalence=ladders)
    told = summary(measured, find(measured))
    assert list(told) == ["gloo-2_over_one_process", "gloo-1", "gloo-2"]
    loss = measured.losses["gloo-2"]["loss"].iloc[-1]
    assert told["gloo-2"] == {
        "verdict": "proven",
        "loss": round(loss, 6),
        "bits_equal": True,
        "one_process_gap_1e_9": 3100.0,
    }
    assert told["gloo-1"]["verdict"] == "undecided"


def test_one_process_has_no_gap_to_itself() -> None:
    measured = results([1])
    told = summary(measured, find(measured))
    assert told["gloo-1"]["one_process_gap_1e_9"] is None
    assert told["gloo-1"]["bits_equal"] is None


@pytest.mark.parametrize(
    ("rungs", "equal", "gap"),
    [
        # 2.55e-8 is 25.5 billionths
        ({"one_process": rung("within tolerance", 9, 2.55e-8)}, True, 25.5),
        ({"ranks": rung("breach", 3, 1e-7)}, False, 3100.0),
    ],
)
def test_gap_and_bits_are_those_of_the_ladder(
    rungs: dict[str, Any], equal: bool, gap: float
) -> None:
    measured = results([2], equivalence={"gloo-2": ladder_of(2) | rungs})
    told = summary(measured, find(measured))["gloo-2"]
    assert (told["bits_equal"], told["one_process_gap_1e_9"]) == (equal, gap)


def test_busy_machine_has_no_speedup() -> None:
    quiet = results([2])
    speed = summary(quiet, find(quiet))["gloo-2_over_one_process"]
    # 16,400 over 10,000 tokens per second, but for noise
    assert speed["speedup"] == pytest.approx(1.64, rel=0.01)
    assert speed["machine_busy"] is False
    taken = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})
    busy = results([2], baseline_provenance=taken)
    speed = summary(busy, find(busy))["gloo-2_over_one_process"]
    assert (speed["speedup"], speed["machine_busy"]) == (None, True)
