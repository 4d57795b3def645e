"""Rungs printed in a terminal."""

from report_inputs import rung

from minitrain.proof.words import printed


def test_printed_ladder_has_the_words_of_the_report_and_distances() -> None:
    ladder = {
        "trained": rung("passed", detail="50 of 50 tensors changed"),
        "replay": rung("equal", 0, 0.0),
        "one_process": rung("within tolerance", 812, 3.1e-06, "allowed: 0.0003"),
        "reference": rung("within tolerance", detail="at most 0 of it"),
    }
    assert printed(ladder) == [
        "trained      passed            50 of 50 tensors changed",
        "replay       equal",
        "one_process  within tolerance  3.1e-06 apart; allowed: 0.0003",
        "reference    within tolerance  at most 0 of it",
    ]
