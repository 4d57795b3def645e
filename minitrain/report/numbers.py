"""Formatting of numbers in sentences, tables and charts."""

from collections.abc import Iterable
from typing import Any

UNDEFINED = "-"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return ``12,078 cores`` or ``1 core``; ``nouns`` is the plural, if irregular."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def all_of(count: int, noun: str) -> str:
    """Return ``all 4 cores``, ``both cores`` or ``the only core``."""
    few = {1: f"the only {noun}", 2: f"both {noun}s"}
    return few.get(count, f"all {count} {noun}s")


def capitalized(text: str) -> str:
    """Capitalize the first letter of ``text``."""
    return text[:1].upper() + text[1:]


def thousands(number: float) -> str:
    """Round to a whole number, with separators: ``16,900``."""
    return f"{number:,.0f}"


def times(*ratios: float) -> list[str]:
    """Format ratios with two decimals, or all with three if one would be 1.00."""
    decimals = 3 if "1.00" in [f"{ratio:.2f}" for ratio in ratios] else 2
    return [f"{ratio:.{decimals}f}" for ratio in ratios]


def percent(share: float) -> str:
    """Return ``8.6 %`` for a share of 0.086."""
    return f"{100 * share:.1f} %"


def ms(value: float | None) -> str:
    """Return ``97.3 ms``; a dash for None (not measured)."""
    return UNDEFINED if value is None else f"{value:.1f} ms"


def num_bytes(value: float) -> str:
    """Format a number of bytes in powers of ten: ``3.5 MB``, ``12.0 kB``."""
    unit, name = (1e6, "MB") if value >= 1e6 else (1e3, "kB")
    return f"{value / unit:.1f} {name}"


def cell(value: Any, spec: str = "") -> str:
    """Format a value for a table: floats by ``spec``, None as a dash."""
    if value is None:
        return UNDEFINED
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(cell(each, spec) for each in value)
    return format(value, spec) if isinstance(value, float) else str(value)
