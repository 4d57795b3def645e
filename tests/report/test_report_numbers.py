"""How numbers are written: rounded for a reader, never to something else."""

from minitrain.report.numbers import capitalized, ms, percent, plural, thousands, times


def test_one_is_singular_and_every_other_count_plural() -> None:
    assert [plural(n, "core") for n in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
    assert plural(2, "loss", "losses") == "2 losses"
    assert plural(1, "loss", "losses") == "1 loss"


def test_ratio_that_is_not_one_does_not_read_as_one() -> None:
    assert times(1.64, 0.5) == ["1.64", "0.50"]
    # all of them at the same precision
    assert times(1.004, 1.64) == ["1.004", "1.640"]
    assert times(0.9951) == ["0.995"]


def test_units() -> None:
    assert thousands(16_899.6) == "16,900"
    assert percent(0.0864) == "8.6 %"
    assert ms(97.25) == "97.2 ms"


def test_only_the_first_letter_is_capitalized() -> None:
    assert capitalized("one GPU") == "One GPU"
    assert capitalized("") == ""
