"""Rows of settings: what they mean, and what does not fit."""

from typing import Any

import pytest
from setting import Setting, name_of, new_in, setting_of

ROW = ["ddp", 2, 4, 128, 8, 2, None, "1gbit"]


def changed(place: int, value: Any) -> list[Any]:
    return [*ROW[:place], value, *ROW[place + 1 :]]


def test_a_row_has_its_fields_in_order() -> None:
    assert setting_of(ROW) == Setting(
        sync="ddp",
        processes=2,
        n_layer=4,
        n_embd=128,
        samples=8,
        micro_batches=2,
        bucket_cap_mb=None,
        link="1gbit",
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (ROW[:-1], "must be a list of sync, processes"),
        (changed(0, "zero1"), "sync must be one of none, ddp, fp16_compress"),
        (changed(1, 0), "must be whole numbers above 0"),
        (changed(3, 128.0), "must be whole numbers above 0"),
        (changed(4, True), "must be whole numbers above 0"),
        (changed(1, 1), "sync must be none for one process"),
        (changed(5, 3), "samples must be a multiple of micro_batches"),
        (changed(6, 0), "bucket_cap_mb must be null or above 0"),
        (changed(6, "1"), "bucket_cap_mb must be null or above 0"),
        (changed(7, "fast"), "must be a rate such as 100mbit"),
    ],
)
def test_what_does_not_fit(row: list[Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        setting_of(row)


def test_names_tell_settings_apart() -> None:
    rows = [ROW, *(changed(place, new) for place, new in DIFFERENT)]
    names = [name_of(setting_of(row)) for row in rows]
    assert len(set(names)) == len(names)
    assert names[0] == "ddp, 2 x 8 samples, 4 layers of 128, 2 micro-batches, 1gbit"


DIFFERENT = [
    (0, "fp16_compress"),
    (1, 3),
    (2, 5),
    (3, 64),
    (4, 4),
    (5, 1),
    (6, 0.5),
    (7, "loopback"),
]


def test_what_is_new() -> None:
    fitted = [setting_of(ROW), setting_of(changed(3, 64))]
    assert new_in(setting_of(ROW), fitted) == []
    # each value alone was seen, though not with the other: that is not new
    assert new_in(setting_of(changed(3, 64)), fitted) == []
    other = setting_of(["ddp", 3, 4, 96, 8, 2, None, "1gbit"])
    assert new_in(other, fitted) == ["processes", "n_embd"]


def test_without_communication() -> None:
    setting = setting_of(ROW)
    assert setting.silent == setting_of(["none", 2, 4, 128, 8, 2, None, "loopback"])
    assert setting.alone == setting_of(["none", 1, 4, 128, 8, 2, None, "loopback"])
