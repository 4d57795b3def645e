"""The sentence on slow ranks: each number where it belongs, and nothing unsaid."""

from typing import Any

from report_inputs import results, stragglers_of

from minitrain.report.page import page
from minitrain.report.stragglers import straggler_sentence
from minitrain.report.words import find

LAG = {"rank": 1, "excess_ms": 3.4, "low_ms": 2.9, "high_ms": 4.0}
SLOW = stragglers_of(2) | {"slow": [LAG], "others_wait_ms": 3.1, "step_ms": 19.8}


def said(found: dict[str, Any]) -> str:
    return straggler_sentence("gloo-2", found)


def test_rank_excess_and_loss_are_named() -> None:
    # 3.1 of 19.8 ms
    assert said(SLOW) == (
        "Rank 1 of gloo-2 needs 3.4 ms a step more than the others (90 % confidence: "
        "2.9 to 4.0 ms) for its own work (batch, forward and backward pass, "
        "optimizer); they wait 3.1 ms for it in a step of 19.8 ms, 15.7 % (42 steps)."
    )


def test_second_slow_rank_is_named_too() -> None:
    more = LAG | {"rank": 3, "excess_ms": 2.1}
    text = said(SLOW | {"slow": [LAG, more]})
    assert "(90 % confidence: 2.9 to 4.0 ms, rank 3 by 2.1 ms) for its own work" in text


def test_wait_that_nobody_timed_is_not_told() -> None:
    text = said(SLOW | {"others_wait_ms": None})
    assert text.endswith("; how long they wait for it was not timed (42 steps).")


def test_no_straggler_says_what_would_have_been_one() -> None:
    text = said(stragglers_of(2))
    assert text.startswith("No straggler is seen in gloo-2: a rank that needed 8.2 ms")
    assert text.endswith("would have been (42 steps).")


def test_undecided_is_said_with_its_reason() -> None:
    text = said(stragglers_of(2) | {"undecided": "7 steps are too few, 8 would do"})
    assert text == (
        "Whether the ranks of gloo-2 wait for one of them is undecided: 7 steps are "
        "too few, 8 would do."
    )


def test_page_speaks_of_every_run_of_several_ranks() -> None:
    measured = results([1, 2, 4])
    measured.timing["gloo-4"]["stragglers"] |= SLOW
    text = page(measured, find(measured))
    assert "No straggler is seen in gloo-2: " in text
    assert "Rank 1 of gloo-4 needs 3.4 ms a step more than the others" in text
    assert "in gloo-1" not in text
    alone = results([1])
    assert "own work (batch" not in page(alone, find(alone))
