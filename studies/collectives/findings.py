"""Shared helpers of plot and tables: names, units, medians, findings."""

from typing import Any

import pandas as pd

NAMES = {"gloo": "gloo", "shm": "shared memory", "nccl": "NCCL", "copy": "plain copy"}
BINARY, DECIMAL = {2**20: "MiB", 2**10: "KiB", 1: "B"}, {10**6: "MB", 1000: "kB"}


def size(num_bytes: int) -> str:
    """Format bytes exactly: ``16 KiB`` for powers of 4, ``40 kB`` for thousands."""
    units = BINARY if num_bytes % 1000 else DECIMAL
    unit = next(unit for unit in units if num_bytes >= unit)
    return f"{num_bytes / unit:g} {units[unit]}"


def duration(us: float) -> str:
    """Format a duration: ``12.3 µs``, ``1.2 ms``, ``340 ms``, ``1.2 s``."""
    unit, name = next(u for u in ((1e6, "s"), (1e3, "ms"), (0, "µs")) if us >= u[0])
    return f"{short(us / (unit or 1))} {name}"


def short(number: float) -> str:
    """Format with one decimal below 100, two below 1, else none."""
    decimals = 2 if number < 1 else 1 if number < 100 else 0
    return f"{number:,.{decimals}f}"


def medians(table: pd.DataFrame, world_size: int) -> Any:
    """Return the median time in microseconds: a row per size, a column per backend."""
    mine = table[table["world_size"] == world_size]
    return mine.pivot(index="num_bytes", columns="backend", values="p50_us")


def against_gloo(table: pd.DataFrame, world_size: int) -> str:
    """Return the range of speedups of shared memory over gloo, over all sizes."""
    us = medians(table, world_size)
    ratios = us["gloo"] / us["shm"]
    slower = int((ratios <= 1).sum())
    aside = f", no faster at {slower} of {len(us)} sizes" if slower else ""
    return (
        f"With {world_size} processes, shared memory is {short(ratios.min())} to "
        f"{short(ratios.max())} times as fast as gloo{aside}"
    )
