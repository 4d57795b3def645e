"""How numbers are written: rounded for a reader, never to something else."""

from minitrain.report.numbers import (
    times,
)


def test_ratio_that_is_not_one_does_not_read_as_one() -> None:
    assert times(1.64, 0.5) == ["1.64", "0.50"]
    # all of them at the same precision
    assert times(1.004, 1.64) == ["1.004", "1.640"]
    assert times(0.9951) == ["0.995"]
