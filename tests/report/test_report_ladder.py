"""What was proven, in words."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from project import PARAMS_FILE
from report_inputs import ladder_of, results, rung

from minitrain.analysis.verdicts import verdict_of
from minitrain.core.params import load_params
from minitrain.proof.bits import not_run
from minitrain.proof.ladder import ONE_PROCESS
from minitrain.proof.runs import across_world_sizes
from minitrain.report.glossary import RUNGS
from minitrain.report.ladder import (
    byte_equivalent,
    equivalence_sentences,
    rungs,
    same_headline,
)
from minitrain.report.matrix import matrix
from minitrain.testing.check import examine
from minitrain.testing.subjects import make_run
from minitrain.train.config import config_of


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
    why = "the bits are those of a replay, and a witness computed the gradients"
    proven = {"verdict": "proven", "rests_on": why}
    runs = {"gloo-1": ladder_of(1), "gloo-2": ladder_of(2) | proven}
    text = equivalence_sentences(results([1, 2], equivalence=runs))
    assert text.startswith(f"The verdict on gloo-2 is proven: {why}. No breach")
    assert "No breach was found: 2 checks passed, and " in text
    assert "of 14 comparisons, 9 equal to the last bit, 2 within their tol" in text
    # which ones, the matrix shows: tests/report/test_report_matrix.py
    assert text.endswith(", 3 not run.")


def test_sentence_says_what_was_not_compared() -> None:
    ladder = ladder_of(2)
    ladder["one_process"] = asdict(not_run("batch norm"))
    verdict, rests_on = verdict_of(rungs(ladder))
    said = ladder | {"verdict": verdict, "rests_on": rests_on}
    text = equivalence_sentences(results([2], equivalence={"gloo-2": said}))
    assert "; one process was not compared: batch norm. No breach was found" in text


def test_counts_add_up_to_the_cells_of_the_matrix() -> None:
    runs = {f"gloo-{size}": ladder_of(size) for size in (1, 2)}
    # asked of the one run alone: a cell in each
    runs["gloo-2"]["loss"] = rung("within tolerance")
    measured = results([1, 2], equivalence=runs)
    text = equivalence_sentences(measured)
    kinds = "checks? passed|equal to|within their|not run"
    counts = map(int, re.findall(rf"(\d+) (?:{kinds})", text))
    cells = [cell for row in matrix(measured).rows for cell in row.outcomes]
    assert sum(counts) == len(cells) == 18


def test_sentences_name_the_breach_and_claim_nothing_else() -> None:
    broken = {"gloo-2": changed("data", bytes_equal=False, verdict="breach")}
    text = equivalence_sentences(results([2], equivalence=broken))
    assert text == "The runs are not equivalent: gloo-2 data breached."


def test_no_claim_of_equal_bits_from_a_replay_within_tolerance() -> None:
    near = {"verdict": "within tolerance", "bytes_equal": False, "max_abs_diff": 1e-6}
    text = equivalence_sentences(
        results([2], equivalence={"gloo-2": changed("replay", **near)})
    )
    told = "No breach was found: 1 check passed, and of 7 comparisons, 4 equal"
    assert told in text


@pytest.mark.parametrize("verdict", ["replay only", "undecided"])
def test_what_is_not_proven_is_called_what_it_is(verdict: str) -> None:
    """The rungs of the bits are equal, and say nothing of what nobody supports."""
    why = "no witness supports it"
    ladder = ladder_of(2) | {"verdict": verdict, "rests_on": why}
    assert byte_equivalent(ladder) is True
    text = equivalence_sentences(results([2], equivalence={"gloo-2": ladder}))
    assert text.startswith(f"The verdict on gloo-2 is {verdict}: {why}. No breach")
    assert "what one process" not in text


def test_being_trained_compares_nothing() -> None:
    ladder = ladder_of(2)
    only = {"trained": ladder["trained"], "state_sha256": ["ab"] * 2}
    text = equivalence_sentences(results([2], equivalence={"gloo-2": only}))
    assert text == "Nothing was compared, so nothing is proven."


def test_every_rung_has_a_phrase_and_every_phrase_a_rung(tmp_path: Path) -> None:
    """Of the ladder in fp16 with DDP, which has all that any other has, and of what
    only the stage asks.
    """
    trial = replace(make_run(), precision="fp16")
    climbed = set(examine(trial, 2, timeout_s=60).rungs)
    params = load_params(PARAMS_FILE).with_train(sync="invariant")
    beside = set(
        across_world_sizes("gloo-1", params, config_of(params, tmp_path, 1), tmp_path)
    )
    # where training draws random numbers, in place of two others
    beside |= {"witness_spread"}
    # asked where gradients are approximated on purpose
    beside |= {"loss"}
    assert climbed | beside | {*ONE_PROCESS} == RUNGS.keys()
    phrases = list(RUNGS.values())
    assert len(phrases) == len(set(phrases))


def test_nothing_compared_is_nothing_proven() -> None:
    nothing = {"gloo-2": {"state_sha256": ["ab"] * 2}}
    text = equivalence_sentences(results([2], equivalence=nothing))
    assert text == "Nothing was compared, so nothing is proven."


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("proven", "Yes, to the last bit: gloo-2 is proven"),
        (
            "replay only",
            "The bits of its replay, and no witness: gloo-2 is replay only",
        ),
        ("undecided", "Not decided: gloo-2 is undecided"),
        ("breach", "No: gloo-2 is a breach"),
    ],
)
def test_headline_answers_with_the_verdict(verdict: str, said: str) -> None:
    ladder = ladder_of(2) | {"verdict": verdict}
    assert same_headline(results([2], equivalence={"gloo-2": ladder})) == said


def test_headline_says_no_where_any_rung_does() -> None:
    """Whatever the verdict of the run says."""
    broken = changed("data", bytes_equal=False, verdict="breach")
    runs = {"gloo-1": ladder_of(1), "gloo-2": broken | {"verdict": "proven"}}
    text = same_headline(results([1, 2], equivalence=runs))
    assert text == "No: gloo-2 data breached"


def test_headline_names_a_run_with_another_verdict() -> None:
    runs = {"gloo-1": ladder_of(1), "gloo-2": ladder_of(2) | {"verdict": "proven"}}
    text = same_headline(results([1, 2], equivalence=runs))
    assert text == "Yes, to the last bit: gloo-2 is proven; gloo-1 is undecided"


def test_one_process_is_no_answer() -> None:
    alone = {"gloo-1": ladder_of(1) | {"verdict": "proven"}}
    text = same_headline(results([1], equivalence=alone))
    assert text == "Only one process ran: gloo-1 is proven"
