"""What was proven, in words."""

from typing import Any

import pytest
from report_inputs import ladder_of, results

from minitrain.report.ladder import (
    byte_equivalent,
    equivalence_sentences,
    rungs,
    verdict_in_words,
)


def changed(rung: str, **fields: Any) -> dict[str, Any]:
    ladder = ladder_of(2)
    return ladder | {rung: ladder[rung] | fields}


def test_byte_equivalent() -> None:
    assert byte_equivalent(ladder_of(2)) is True


@pytest.mark.parametrize(
    "rung", ["ranks", "replay", "replay_gradients", "replay_parameters"]
)
def test_byte_equivalent_needs_every_rung(rung: str) -> None:
    assert byte_equivalent(changed(rung, bytes_equal=False)) is False
    assert byte_equivalent(changed(rung, bytes_equal=None)) is None
    without = {name: value for name, value in ladder_of(2).items() if name != rung}
    assert byte_equivalent(without) is None


def test_byte_equivalent_does_not_ask_for_equal_bits_of_one_process() -> None:
    assert ladder_of(2)["one_process"]["bytes_equal"] is False
    assert byte_equivalent(changed("one_process", max_ulp=9)) is True


def test_one_rank_has_nothing_to_be_compared_with() -> None:
    assert byte_equivalent(ladder_of(1)) is None


def test_rungs_leave_out_what_is_not_one() -> None:
    assert "state_sha256" in ladder_of(2)
    assert "state_sha256" not in rungs(ladder_of(2))


def test_sentences_count_the_verdicts() -> None:
    # gloo-2: 5 equal, 2 within tolerance; gloo-1: 4 equal, 3 without a peer; whether
    # anything was trained compares no bits
    text = equivalence_sentences(results([1, 2]))
    assert text.startswith("2 processes computed, to the last bit, what one process")
    assert "of 14 comparisons, 9 equal to the last bit, 2 within" in text
    assert "largest difference 3.1e-06" in text
    skipped = "gloo-1 ranks, gloo-1 one_process_gradients, gloo-1 one_process"
    assert f"3 not run ({skipped})" in text


def test_sentences_name_the_breach_and_claim_nothing_else() -> None:
    broken = {"gloo-2": changed("data", bytes_equal=False, verdict="breach")}
    text = equivalence_sentences(results([2], equivalence=broken))
    assert text == "The runs are not equivalent: gloo-2 data breached."


def test_no_claim_of_equal_bits_from_a_replay_within_tolerance() -> None:
    near = {"verdict": "within tolerance", "bytes_equal": False, "max_abs_diff": 1e-6}
    text = equivalence_sentences(
        results([2], equivalence={"gloo-2": changed("replay", **near)})
    )
    assert text.startswith("No breach was found: of 7 comparisons, 4 equal")


def test_being_trained_is_passed_not_equal() -> None:
    ladder = ladder_of(2)
    assert ladder["trained"]["verdict"] == "equal"
    assert verdict_in_words(ladder["trained"]) == "passed"
    assert verdict_in_words(ladder["replay"]) == "equal"
    only = {"trained": ladder["trained"], "state_sha256": ["ab"] * 2}
    text = equivalence_sentences(results([2], equivalence={"gloo-2": only}))
    assert text == "Nothing was compared, so nothing is proven."


def test_nothing_compared_is_nothing_proven() -> None:
    nothing = {"gloo-2": {"state_sha256": ["ab"] * 2}}
    text = equivalence_sentences(results([2], equivalence=nothing))
    assert text == "Nothing was compared, so nothing is proven."
