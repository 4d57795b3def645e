"""How the gradients of the ranks become one: a file for each family of strategies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.sync.guarantees import Defaults
    from minitrain.sync.strategy import Strategy

__all__ = ["Defaults", "Strategy"]
_HOMES = {"Defaults": "guarantees", "Strategy": "strategy"}


def __getattr__(name: str) -> Any:
    # a strategy imports torch, and what it guarantees can be known without
    if name in _HOMES:
        return getattr(import_module(f"minitrain.sync.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
