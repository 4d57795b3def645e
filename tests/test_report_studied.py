"""The table of the studied ladder: every rung of bits, every gap, every breach."""

from report_inputs import studied_ladder as rungs

from minitrain.report.blocks import Paragraph, Table
from minitrain.report.studied import BYTES, GAPS, studied_ladder


def test_table_by_hand() -> None:
    _, said, table = studied_ladder(rungs())
    assert isinstance(table, Table)
    assert table.rows == [
        ["AdamW", "3", *["="] * len(BYTES), *["2.5e-07"] * len(GAPS)],
        ["AdamW, dropout", "3", *["="] * len(BYTES), *["-"] * len(GAPS)],
    ]
    assert isinstance(said, Paragraph)
    # six rungs of bits in each of the two runs
    assert "12 of 12 comparisons of bits are equal, and nothing breached" in said.text


def test_breach_is_named() -> None:
    _, said, table = studied_ladder(rungs(replay="breach"))
    assert isinstance(table, Table)
    assert isinstance(said, Paragraph)
    assert "10 of 12 comparisons of bits are equal, and 2 rungs breached" in said.text
    assert [row.count("BREACH") for row in table.rows] == [1, 1]
