"""An all-reduce by itself: the one nearest in size, and none where none is near."""

import pytest
from report_inputs import MACHINE, studied_collectives

from minitrain.report.collectives import all_reduce_sentences


def test_small_all_reduce_is_told_in_its_unit() -> None:
    studied = studied_collectives().replace({"num_bytes": {4: 50_000}})
    text = all_reduce_sentences(studied, MACHINE, "ddp", 2, 49_920)
    assert "one of 50.0 kB" in text
    assert text.endswith("the gradients of a step are 49.9 kB.")


@pytest.mark.parametrize(
    ("num_bytes", "told"),
    [
        # 2,048,000 is as many times 1,048,576 as 4,000,000 is times it
        (2_040_000, "one of 1.0 MB among 2 processes takes 1.0 ms"),
        (2_060_000, "one of 4.0 MB among 2 processes takes 4.0 ms"),
        # 16,777,216 is twice as much as 8,388,608
        (8_388_609, "one of 16.8 MB among 2 processes takes 16.8 ms"),
        (8_388_607, None),
    ],
)
def test_nearest_size_within_a_factor_of_two(num_bytes: int, told: str | None) -> None:
    text = all_reduce_sentences(studied_collectives(), MACHINE, "ddp", 2, num_bytes)
    assert ("By itself" in text) == (told is not None)
    assert told is None or told in text


def test_figure_of_unknown_origin_is_not_quoted() -> None:
    studied = studied_collectives().drop(columns="code_sha256")
    text = all_reduce_sentences(studied, MACHINE, "ddp", 2, 4_000_000)
    assert "By itself" not in text
