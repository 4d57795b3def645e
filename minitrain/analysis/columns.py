"""Timings as columns of equal length: what is asked of them, by NumPy alone.

The recorder reads its times with it where pandas is not installed.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]


class Table(Protocol):
    """A row for each step and rank: :data:`Columns`, or a DataFrame of pandas."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return the columns by name."""


def columns_of(table: Table) -> Columns:
    """Return the columns of ``table``."""
    return {str(name): np.asarray(values) for name, values in table.items()}


def rows_where(rows: Columns, kept: npt.NDArray[np.bool_]) -> Columns:
    """Return the rows for which ``kept`` is true."""
    return {name: values[kept] for name, values in rows.items()}


def numbers(rows: Columns, name: str) -> Floats:
    """Return a column as numbers, NaN where there is none."""
    return np.asarray(rows.get(name, np.full(len(rows["step"]), np.nan)), np.float64)


def known(rows: Columns, name: str) -> Floats:
    """Return the numbers of a column, without NaN."""
    values = numbers(rows, name)
    return values[~np.isnan(values)]


def by_step_and_rank(rows: Columns, values: Floats) -> Floats:
    """Return ``values``, of which each row has one, as (steps, ranks); NaN where there
    is no row.
    """
    steps, step = np.unique(rows["step"], return_inverse=True)
    ranks, rank = np.unique(rows["rank"], return_inverse=True)
    found = np.full((len(steps), len(ranks)), np.nan)
    found[step, rank] = values
    return found


def slowest(rows: Columns, name: str = "step_ms") -> Floats:
    """Return the largest number of each step among its ranks, NaN without any."""
    found = by_step_and_rank(rows, numbers(rows, name))
    return np.fmax.reduce(found, axis=1, initial=np.nan)


def longest_s(rows: Columns) -> float:
    """Return the seconds that all steps together took, of the rank that took most."""
    found = by_step_and_rank(rows, numbers(rows, "step_ms"))
    return float(np.nansum(found, axis=0).max(initial=0.0)) / 1e3
