"""How the gradients of the ranks become one: a file for each family of strategies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.sync.strategy import Strategy

__all__ = ["Strategy"]


def __getattr__(name: str) -> Any:
    # it imports torch
    if name == "Strategy":
        return import_module("minitrain.sync.strategy").Strategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
