"""The ladder as a matrix: no outcome is told by its color alone."""

from dataclasses import replace

import pytest
from report_inputs import ladder_of, on_two_hosts, results, rung

from minitrain.report.glossary import RUNGS
from minitrain.report.matrix import OUTCOMES, VERDICTS, matrix, outcome_of


@pytest.mark.parametrize(
    ("given", "kind", "shown"),
    [
        (rung("equal", 0, 0.0), "equal", "= equal"),
        # no bits are compared
        (rung("equal"), "equal", "✓ passed"),
        (rung("within tolerance", 812, 3.14e-06), "near", "≈ 3.1e-06"),
        (rung("within tolerance"), "near", "≈ within"),
        (rung("undecided"), "undecided", "? undecided"),
        (rung("breach", 3, 1.0), "breach", "✗ breach"),
        (rung("not run"), "absent", "- not run"),
    ],
)
def test_outcomes(given: dict[str, object], kind: str, shown: str) -> None:
    found = outcome_of(given)
    assert (found.kind, str(found)) == (kind, shown)


@pytest.mark.parametrize("outcomes", [OUTCOMES, VERDICTS])
def test_no_two_outcomes_have_the_same_mark(
    outcomes: dict[str, tuple[str, str]],
) -> None:
    marks = [mark for _, mark in outcomes.values()]
    assert len({*marks}) == len(marks)


def test_rows_are_rungs_and_columns_are_runs() -> None:
    ladders = {f"gloo-{size}": ladder_of(size) for size in (1, 2)}
    ladders["gloo-2"] |= {"verdict": "proven"}
    found = matrix(results([1, 2], equivalence=ladders))
    runs = [(run, str(verdict)) for run, verdict in found.runs]
    assert runs == [("gloo-1", "? undecided"), ("gloo-2", "✓ proven")]
    rows = {row.what: [str(outcome) for outcome in row.outcomes] for row in found.rows}
    assert rows == {
        RUNGS["trained"]: ["✓ passed", "✓ passed"],
        RUNGS["ranks"]: ["- not run", "= equal"],
        RUNGS["data"]: ["= equal", "= equal"],
        RUNGS["replay_gradients"]: ["= equal", "= equal"],
        RUNGS["replay_parameters"]: ["= equal", "= equal"],
        RUNGS["replay"]: ["= equal", "= equal"],
        RUNGS["one_process_gradients"]: ["- not run", "≈ 3.1e-06"],
        RUNGS["one_process"]: ["- not run", "≈ 3.1e-06"],
    }


def test_row_that_was_made_nowhere_is_muted() -> None:
    ladders = {f"gloo-{size}": ladder_of(size) for size in (1, 2)}
    for ladder in ladders.values():
        ladder["replay_buffers"] = rung("not run")
    # asked of the one, and not of the other
    ladders["gloo-2"]["loss"] = rung("not run")
    found = matrix(results([1, 2], equivalence=ladders))
    muted = [row.what for row in found.rows if row.muted]
    assert muted == [RUNGS["replay_buffers"], RUNGS["loss"]]


def test_hosts_stand_beside_the_run() -> None:
    measured = results([1, 2])
    assert matrix(measured).runs[1][0] == "gloo-2"
    assert matrix(on_two_hosts(measured, "gloo-2")).runs[1][0] == "gloo-2 (2 hosts)"


def test_markdown_has_a_mark_and_a_word_in_each_cell() -> None:
    proven = {"gloo-2": ladder_of(2) | {"verdict": "proven"}}
    measured = replace(results([2]), equivalence=proven)
    head, _, *rows = matrix(measured).as_markdown().splitlines()
    assert head == "| compared | gloo-2: ✓ proven |"
    assert f"| {RUNGS['one_process']} | ≈ 3.1e-06 |" in rows
    assert len(rows) == 8
