"""Markdown tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from minitrain.report.render import escaped


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table with escaped cells; rows are as long as ``header``."""
    head, *lines = (f"| {' | '.join(map(escaped, row))} |" for row in (header, *rows))
    return "\n".join([head, "|---" * len(header) + "|", *lines])
