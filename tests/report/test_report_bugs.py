"""What a bug would look like: by hand, and no number where other code counted."""

import re
from typing import Any

import pytest
from report_inputs import results, zoo

from minitrain.report.page import page
from minitrain.report.studied_bugs import (
    HIDDEN,
    SHOWS,
    STOPS,
    bugs_headline,
    bugs_sentences,
    bugs_table,
    digest,
    loss_curve,
)
from minitrain.report.words import find

FOUND = digest(zoo())


def test_digest_by_hand() -> None:
    assert FOUND["bugs"] == {
        "sum_for_mean": {
            "met_in": "a project #1",
            "check": "replay",
            "caught_by": ["replay"],
            "loss": HIDDEN,
        },
        "other_data": {
            "met_in": "a project #1",
            "check": "data",
            "caught_by": ["data", "replay"],
            "loss": SHOWS,
        },
        "stops": {
            "met_in": "a project #1",
            "check": "ranks",
            "caught_by": [],
            "loss": STOPS,
        },
    }
    assert (FOUND["clean_runs"], FOUND["alarms"]) == (2, 1)
    assert FOUND["provenance"]["code_sha256"] == "12" * 32


@pytest.mark.parametrize(
    ("last", "looks"),
    # clean runs at 4 and 5: their standard deviation is 0.707
    [(4.0, HIDDEN), (4.7, HIDDEN), (3.3, HIDDEN), (4.72, SHOWS), (3.2, SHOWS)],
)
def test_curve_looks_right_within_the_spread_of_seeds(last: float, looks: str) -> None:
    clean = [[4.0] * 8, [5.0] * 8]
    # the last quarter decides alone
    assert loss_curve([9.0] * 6 + [last] * 2, clean) == looks


def test_headline_and_sentences_have_the_numbers_of_the_table() -> None:
    assert bugs_headline(FOUND) == (
        "1 of 3 injected bugs left a loss curve that looks right; 2 were caught by the "
        "comparison that is meant to"
    )
    text = bugs_sentences(FOUND)
    assert "1 of 2 clean runs raised an alarm. Measured on 2026-01-01:" in text
    table = str(bugs_table(FOUND)).splitlines()[2:]
    assert table == [
        r"| sum for mean | a project #1 | \~ looks right | ✓ replay |",
        "| other data | a project #1 | ✗ looks wrong | ✓ data, and 1 more |",
        "| stops | a project #1 | ✗ training stops | ✗ not ranks |",
    ]


def section_of(bugs: dict[str, Any] | None) -> str:
    measured = results([1, 2], bugs=bugs)
    text = page(measured, find(measured))
    return text.partition("## What would a bug look like?")[2].partition("\n## ")[0]


def test_page_has_no_number_where_other_code_counted() -> None:
    known, unknown = section_of(FOUND), section_of(None)
    assert "1 of 3 injected bugs" in known
    assert "| sum for mean |" in known
    assert "`make study-zoo` measures it, `make` then shows it here." in unknown
    assert not re.search(r"\d", unknown)
