"""Names of links: loopback, and cables by their rate, written as tc does."""

import re

from minitrain.core.errors import UserError

LOOPBACK = "loopback"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bytes_per_s(rate: str) -> float:
    """Parse a rate: ``100mbit`` is 12.5e6 bytes per second.

    Raises UserError unless it is a positive number with its unit.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not found or not float(found[1]):
        raise UserError(f"link = {rate!r}: must be a rate such as 100mbit or 1gbit")
    return float(found[1]) * UNITS[found[2]] / 8
