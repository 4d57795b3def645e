"""Strategies by their names in ``train.sync``, imported only when needed."""

import importlib
from typing import TYPE_CHECKING

from minitrain.core.errors import UserError, did_you_mean
from minitrain.sync.guarantees import GUARANTEES, Guarantees

if TYPE_CHECKING:
    from minitrain.sync.strategy import Strategy

# a new name also needs a row in GUARANTEES
STRATEGIES = {
    "ddp": "minitrain.sync.ddp_buckets:StockDDP",
    "per_parameter": "minitrain.sync.after_backward:PerParameter",
    "flat": "minitrain.sync.after_backward:Flat",
    "reduce_scatter": "minitrain.sync.after_backward:ReduceScatter",
    "fp16_compress": "minitrain.sync.compressed:Float16Compress",
    "bf16_compress": "minitrain.sync.compressed:BFloat16Compress",
    "powersgd": "minitrain.sync.compressed:PowerSGD",
    "zero1": "minitrain.sync.sharded:ZeRO1",
    "fsdp": "minitrain.sync.sharded:FSDP",
    "invariant": "minitrain.sync.invariant:Invariant",
    "shm": "minitrain.sync.hierarchical:SharedMemory",
    "invariant_shm": "minitrain.sync.invariant:InvariantSharedMemory",
    "one_copy": "minitrain.sync.one_copy:OneCopy",
    "hierarchical": "minitrain.sync.hierarchical:Hierarchical",
}
# strategy that trains the plain module, without communication between processes
PLAIN = "minitrain.sync:Strategy"


def find_strategy(name: str) -> "type[Strategy]":
    """Return the class for a key of STRATEGIES or a package.module:Class; raises
    UserError if there is none.
    """
    module, colon, attribute = STRATEGIES.get(name, name).partition(":")
    if not colon:
        raise UserError(
            f"train.sync = {name!r}: must be one of {', '.join(STRATEGIES)}, or "
            f"package.module:Class{did_you_mean(name, STRATEGIES)}"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"train.sync = {name!r}: {why}") from error
    base = importlib.import_module("minitrain.sync.strategy").Strategy
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"train.sync = {name!r}: must be a minitrain.sync.Strategy")
    return found


def guarantees_of(name: str) -> Guarantees:
    """Return the guarantees of a strategy, without importing torch if it is in
    GUARANTEES. Raises the UserError of :func:`find_strategy`.
    """
    if name in GUARANTEES:
        return GUARANTEES[name]
    return find_strategy(name).guarantees


def name_of(strategy: "type[Strategy]") -> str:
    """Return the key of ``strategy`` in STRATEGIES, or else package.module:Class."""
    home = f"{strategy.__module__}:{strategy.__qualname__}"
    return next((name for name, path in STRATEGIES.items() if path == home), home)
