"""How the steps were timed: each sentence only where it holds."""

import re

from report_inputs import provenance_of, results

from minitrain.report.instruments import how_it_was_timed
from minitrain.report.results import Results
from minitrain.report.words import find


def said(measured: Results) -> list[str]:
    return how_it_was_timed(measured, find(measured))


def test_hook_is_held_against_the_same_arm_without() -> None:
    first = said(results([1, 2]))[0]
    numbers = r"(\S+) times the speed without \(5-95 % interval (\S+) to (\S+),"
    ratio, low, high = re.search(numbers, first).groups()
    # both ran at the same speed, but for noise
    assert float(low) <= float(ratio) <= float(high)
    assert 0.97 < float(ratio) < 1.03
    assert first.startswith("Runs are timed by a hook; gloo-2 with it ran at ")


def test_busy_machine_does_not_judge_the_hook() -> None:
    load = {"others_share": 0.4, "steal_share": 0.0}
    busy = provenance_of(1, load=load)
    assert "): not judged." in said(results([2], baseline_provenance=busy))[0]
    assert "not judged" not in said(results([2]))[0]


def test_one_process_has_no_all_reduce() -> None:
    text = "The all-reduce of a step reaches from"
    assert said(results([2]))[-1].startswith(text)
    assert not [one for one in said(results([1])) if one.startswith(text)]


def test_log_that_torch_does_not_keep_is_not_quoted() -> None:
    measured = results([2])
    assert len(said(measured)) == 3
    for part in measured.timing["gloo-2"]["ddp_says"].values():
        part["difference_pct"] = None
    assert len(said(measured)) == 2
