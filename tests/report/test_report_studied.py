"""The table of the studied ladder: every rung of bits, every gap, every breach; shown
only where what made it is what is here.
"""

from typing import Any

import pytest
from report_inputs import MACHINE, MODEL, provenance_of, results, studied
from report_inputs import studied_ladder as rungs

from minitrain.report.page import page
from minitrain.report.render import escaped
from minitrain.report.studied import Studied
from minitrain.report.studied_ladder import BYTES, GAPS, studied_ladder
from minitrain.report.words import find

RUN = provenance_of(2)
HEADING = "And with more processes, other optimizers, other numbers?"


def rows(said: dict[str, Any]) -> list[list[str]]:
    """The cells of its table, without the header."""
    return [row[2:-2].split(" | ") for row in said["table"].splitlines()[2:]]


def test_table_by_hand() -> None:
    said = studied_ladder(studied(), RUN)
    assert said["foreign"] is None
    assert rows(said) == [
        ["AdamW", "3", *["="] * len(BYTES), *["2.5e-07"] * len(GAPS)],
        ["AdamW, dropout", "3", *["="] * len(BYTES), *["-"] * len(GAPS)],
    ]
    # six rungs of bits in each of the two runs
    assert said["outcome"] == (
        "12 of 12 comparisons of bits are equal, and nothing breached."
    )
    assert said["made_by"] == (
        "Measured on 2026-01-01: Example CPU, 2 cores, torch 2.13.0+cpu. Code "
        "efefefefefef. model: n_layer 4, n_embd 128. train: learning_rate 0.0003."
    )


def test_breach_is_named() -> None:
    said = studied_ladder(studied(table=rungs(replay="breach")), RUN)
    assert said["outcome"] == (
        "10 of 12 comparisons of bits are equal, and 2 rungs breached."
    )
    assert [row.count("BREACH") for row in rows(said)] == [1, 1]


NOTHING: dict[str, Any] = {"model": None, "train": None, "provenance": None}


UNRECORDED = "nobody recorded what made its result"
OTHER_CODE = "other code made its result"
OTHER_MODEL = "another model made its result"
OTHER_MACHINE = "another machine made its result"


def elsewhere(**changes: Any) -> dict[str, Any]:
    return {"machine": MACHINE | changes}


@pytest.mark.parametrize(
    ("changes", "run", "why"),
    [
        ({"origin": NOTHING}, {}, UNRECORDED),
        ({"origin": studied().origin | {"train_code_sha256": None}}, {}, UNRECORDED),
        ({}, {"code_sha256": "01" * 32}, OTHER_CODE),
        ({}, {"code_sha256": None}, OTHER_CODE),
        ({"model": MODEL | {"n_layer": 2}}, {}, f"{OTHER_MODEL} (n_layer: 4, here 2)"),
        ({"model": MODEL | {"mine": 1}}, {}, f"{OTHER_MODEL} (mine: None, here 1)"),
        (
            {},
            elsewhere(cpu="Abacus"),
            f"{OTHER_MACHINE} (cpu: 'Example CPU', here 'Abacus')",
        ),
        ({}, elsewhere(cores=64), f"{OTHER_MACHINE} (cores: 2, here 64)"),
        (
            {},
            elsewhere(torch="2.13.0"),
            f"{OTHER_MACHINE} (torch: '2.13.0+cpu', here '2.13.0')",
        ),
    ],
)
def test_what_is_foreign_is_left_out(
    changes: dict[str, Any], run: dict[str, Any], why: str
) -> None:
    made: Studied = studied(**changes)
    assert made.foreign(RUN | run) == why
    assert studied_ladder(made, RUN | run) == {"foreign": why}
    measured = results([2], studied=made)
    measured.provenance["gloo-2"] |= {k: v for k, v in run.items() if k != "machine"}
    if "machine" not in run:
        left_out = "More processes, other optimizers and number types are left out"
        again = "`make study-ladder` measures them, `make` then shows them here."
        line = f"{escaped(f'{left_out}: {why}.')} {again}"
        assert line in page(measured, find(measured)).splitlines()


def test_page_speaks_of_the_study_only_where_it_is_of_this_model() -> None:
    small = results([1, 2], studied=studied(model=MODEL | {"n_layer": 1}))
    own, other = (page(one, find(one)) for one in (results([1, 2]), small))
    assert HEADING in own
    assert HEADING not in other
    assert "comparisons of bits are equal" in own
    assert "comparisons of bits are equal" not in other
