"""Formatting of numbers: rounding never changes their meaning."""

from minitrain.report.numbers import (
    capitalized,
    cell,
    ms,
    percent,
    plural,
    thousands,
    times,
)


def test_numbers_in_words() -> None:
    assert [plural(n, "core") for n in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
    assert plural(2, "loss", "losses") == "2 losses"
    assert plural(1, "loss", "losses") == "1 loss"
    assert thousands(16_899.6) == "16,900"
    assert percent(0.0864) == "8.6 %"
    assert (ms(97.25), ms(None)) == ("97.2 ms", "-")
    assert (capitalized("one GPU"), capitalized("")) == ("One GPU", "")
    assert cell(None, ".1f") == "-"
    assert cell([1.0, None], ".1f") == "1.0, -"
    assert cell(True, ".1f") == "True"


def test_ratio_that_is_not_one_does_not_read_as_one() -> None:
    assert times(1.64, 0.5) == ["1.64", "0.50"]
    # all with the same precision
    assert times(1.004, 1.64) == ["1.004", "1.640"]
    assert times(0.9951) == ["0.995"]
