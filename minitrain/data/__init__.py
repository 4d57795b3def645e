"""Data pipeline: text, tokens, shards, global order and batches per rank."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.data.shards import make_shard

__all__ = ["make_shard"]


def __getattr__(name: str) -> Any:
    # lazy, since it imports NumPy
    if name == "make_shard":
        return import_module("minitrain.data.shards").make_shard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
