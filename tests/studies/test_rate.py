"""Rates by hand, and what is none."""

import pytest
from link_rate import bytes_per_s

from minitrain.core.errors import UserError


def test_rates_by_hand() -> None:
    # 8 bits a byte
    assert bytes_per_s("100mbit") == 12.5e6
    assert bytes_per_s("1gbit") == 125e6
    assert bytes_per_s("2.5gbit") == 312.5e6
    assert bytes_per_s("800kbit") == 1e5


@pytest.mark.parametrize("rate", ["", "1", "gbit", "0mbit", "1mbps", "-1gbit", "1e3m"])
def test_anything_else_is_one_line(rate: str) -> None:
    with pytest.raises(UserError, match=r"^link = .*: must be a rate such as 100mbit"):
        bytes_per_s(rate)
