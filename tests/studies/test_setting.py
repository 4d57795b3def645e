"""Settings: rows, names, link rates, and differences with an effect."""

from dataclasses import replace
from typing import Any

import pytest
from distinct import repeated
from link_rate import bytes_per_s
from setting import Setting, new_in, setting_of

from minitrain.core.errors import UserError

ROW = ["ddp", 2, 4, 128, 8, 2, None, "1gbit"]
DDP = Setting("ddp", 2, 4, 128, 8, link="1gbit")


def changed(place: int, value: Any) -> list[Any]:
    return [*ROW[:place], value, *ROW[place + 1 :]]


def test_what_does_not_fit() -> None:
    for row, expected in [
        (ROW[:-1], "must be a list of sync, processes"),
        (changed(0, "zero1"), "sync must be one of none, ddp, fp16_compress"),
        (changed(1, 0), "must be whole numbers above 0"),
        (changed(3, 128.0), "must be whole numbers above 0"),
        (changed(1, 1), "sync must be none for one process"),
        (changed(5, 3), "samples must be a multiple of micro_batches"),
        (changed(6, 0), "bucket_cap_mb must be null or above 0"),
        (changed(7, "fast"), "must be a rate such as 100mbit"),
    ]:
        with pytest.raises(ValueError, match=expected):
            setting_of(row)


def test_what_is_new() -> None:
    fitted = [setting_of(ROW), setting_of(changed(3, 64))]
    assert new_in(setting_of(ROW), fitted) == []
    # each value was fitted, though not together: not new
    assert new_in(setting_of(changed(3, 64)), fitted) == []
    other = setting_of(["ddp", 3, 4, 96, 8, 2, None, "1gbit"])
    assert new_in(other, fitted) == ["processes", "n_embd"]


def test_what_makes_the_same_steps_is_a_twin() -> None:
    whole, other = replace(DDP, bucket_cap_mb=25.0), replace(DDP, samples=4)
    # 3.4 MB are one bucket
    same = DDP, replace(DDP, link="1000mbit"), replace(DDP, bucket_cap_mb=50.0)
    for twin in same:
        found = repeated([whole, DDP], [other, twin])
        assert found is not None
        assert found[0] == 1
    # a duplicate of a held-out setting
    assert repeated([DDP], [other, replace(other, link="1000mbit")]) == (1, other)
    # without communication neither a link nor a cap has an effect
    silent = replace(DDP, sync="none")
    for changes in ({"link": "loopback"}, {"bucket_cap_mb": 0.5}):
        assert repeated([silent], [replace(silent, **changes)]) == (0, silent)
        assert repeated([DDP], [replace(DDP, **changes)]) is None


def test_rates_by_hand() -> None:
    # 8 bits a byte
    rates = {"100mbit": 12.5e6, "2.5gbit": 312.5e6, "800kbit": 1e5}
    assert {rate: bytes_per_s(rate) for rate in rates} == rates
    for rate in ("", "gbit", "0mbit", "1mbps", "-1gbit"):
        with pytest.raises(UserError, match=r"^link = .*: must be a rate such as 100m"):
            bytes_per_s(rate)
