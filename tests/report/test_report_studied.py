"""The table of the studied ladder: every rung of bits, every gap, every breach; shown
only where what made it is what is here.
"""

from pathlib import Path
from typing import Any

import pytest
from report_inputs import MACHINE, MODEL, results, studied
from report_inputs import studied_ladder as rungs

from minitrain.core.files import sha256_file, write_json
from minitrain.core.params import load_params
from minitrain.report.blocks import Heading, Paragraph, Table, to_markdown
from minitrain.report.page import page
from minitrain.report.studied import BYTES, GAPS, read_studied, studied_ladder
from minitrain.report.words import find

ROOT = Path(__file__).parents[2]
HEADING = "And with more processes, other optimizers, other numbers?"


def test_table_by_hand() -> None:
    heading, said, table, made = studied_ladder(studied(), MACHINE)
    assert isinstance(heading, Heading)
    assert heading.text == HEADING
    assert isinstance(table, Table)
    assert table.rows == [
        ["AdamW", "3", *["="] * len(BYTES), *["2.5e-07"] * len(GAPS)],
        ["AdamW, dropout", "3", *["="] * len(BYTES), *["-"] * len(GAPS)],
    ]
    assert isinstance(said, Paragraph)
    # six rungs of bits in each of the two runs
    assert "12 of 12 comparisons of bits are equal, and nothing breached" in said.text
    assert isinstance(made, Paragraph)
    assert made.text == (
        "Measured on 2026-01-01: Example CPU, 2 cores, torch 2.13.0+cpu. Code "
        f"efefefefefef. model: n_layer 4, n_embd 128, sha256 {'12' * 32}. train: "
        "learning_rate 0.0003."
    )


def test_breach_is_named() -> None:
    _, said, table, _ = studied_ladder(studied(rungs=rungs(replay="breach")), MACHINE)
    assert isinstance(table, Table)
    assert isinstance(said, Paragraph)
    assert "10 of 12 comparisons of bits are equal, and 2 rungs breached" in said.text
    assert [row.count("BREACH") for row in table.rows] == [1, 1]


NOTHING = {"model": None, "train": None, "provenance": None}


@pytest.mark.parametrize(
    ("changes", "machine", "why"),
    [
        ({"origin": NOTHING}, {}, "nobody recorded what made its result"),
        ({"code": "01" * 32}, {}, "other code made its result"),
        ({"code": None}, {}, "other code made its result"),
        (
            {"model": MODEL | {"n_layer": 2}},
            {},
            "another model made its result (n_layer: 4, here 2)",
        ),
        (
            {"model": MODEL | {"mine": 1}},
            {},
            "another model made its result (mine: None, here 1)",
        ),
        (
            {"model": MODEL | {"sha256": "34"}},
            {},
            f"another model made its result (sha256: '{'12' * 32}', here '34')",
        ),
        (
            {},
            {"cpu": "Abacus"},
            "another machine made its result (cpu: 'Example CPU', here 'Abacus')",
        ),
        ({}, {"cores": 64}, "another machine made its result (cores: 2, here 64)"),
        (
            {},
            {"torch": "2.13.0"},
            "another machine made its result (torch: '2.13.0+cpu', here '2.13.0')",
        ),
    ],
)
def test_what_is_foreign_is_left_out(
    changes: dict[str, Any], machine: dict[str, Any], why: str
) -> None:
    (said,) = studied_ladder(studied(**changes), MACHINE | machine)
    assert isinstance(said, Paragraph)
    assert said.text == (
        f"More processes, other optimizers and number types are left out: {why}. make "
        "study-ladder climbs that ladder, make then shows it."
    )


def test_page_speaks_of_the_study_only_where_it_is_of_this_model() -> None:
    own, other = (
        to_markdown(page(one, find(one)))
        for one in (
            results([1, 2]),
            results([1, 2], studied=studied(model=MODEL | {"n_layer": 1})),
        )
    )
    assert HEADING in own
    assert HEADING not in other
    assert "comparisons of bits are equal" in own
    assert "comparisons of bits are equal" not in other


def test_what_the_study_left_is_read_with_the_model_of_today(tmp_path: Path) -> None:
    rungs().to_csv(tmp_path / "ladder.csv", index=False)
    write_json(tmp_path / "ladder.json", NOTHING)
    file = ROOT / "minitrain/model/gpt.py"
    params = load_params(ROOT / "params.yaml").at(ROOT)
    found = read_studied(tmp_path, params.model, ROOT / "studies/ladder/climb.py")
    assert found.origin == NOTHING
    assert found.model["sha256"] == sha256_file(file)
    assert found.model["n_layer"] == params.model.n_layer
    assert found.code is not None
    assert read_studied(tmp_path, params.model, tmp_path / "climb.py").code is None
