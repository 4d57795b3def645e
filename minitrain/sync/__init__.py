"""Synchronization of gradients: a file for each family of strategies.

Gradients are summed in ``sum_over_ranks`` of ``Flat`` (after_backward.py) or of
``StockDDP`` (ddp_buckets.py: per bucket, in DDP's hook), except that torch sums for
``FSDP``, ``PowerSGD`` and untimed ``StockDDP``, and ``OneCopy`` in ``reduce``. A new
strategy is a subclass of ``Flat`` or ``StockDDP``, a row in ``guarantees.GUARANTEES``
and a line in ``catalog.STRATEGIES``; named as ``package.module:Class``, it needs the
subclass only.
If it does not sum in the order of gloo's ring, it also overrides ``reference``, the
same sum in one process.
"""

from importlib import import_module
from typing import Any

_HOMES = {"Defaults": "guarantees", "Strategy": "strategy"}


def __getattr__(name: str) -> Any:
    # a strategy imports torch, which its guarantees do without
    if name in _HOMES:
        return getattr(import_module(f"minitrain.sync.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
