"""How gradients are synchronized: a file for each family of strategies."""

from importlib import import_module
from typing import Any

_HOMES = {"Defaults": "guarantees", "Strategy": "strategy"}


def __getattr__(name: str) -> Any:
    # a strategy imports torch, which its guarantees do without
    if name in _HOMES:
        return getattr(import_module(f"minitrain.sync.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
