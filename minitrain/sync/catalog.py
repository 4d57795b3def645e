"""Every strategy by the name that ``train.sync`` knows it by."""

import importlib

from minitrain.core.errors import UserError
from minitrain.sync.compressed import BFloat16Compress, Float16Compress, PowerSGD
from minitrain.sync.explicit import Flat, PerParameter, ReduceScatter
from minitrain.sync.invariant import Invariant, InvariantSharedMemory
from minitrain.sync.sharded import FSDP, ZeRO1
from minitrain.sync.shm import SharedMemory
from minitrain.sync.stock import StockDDP
from minitrain.sync.strategy import Strategy

STRATEGIES: dict[str, type[Strategy]] = {
    "ddp": StockDDP,
    "per_parameter": PerParameter,
    "flat": Flat,
    "reduce_scatter": ReduceScatter,
    "fp16_compress": Float16Compress,
    "bf16_compress": BFloat16Compress,
    "powersgd": PowerSGD,
    "zero1": ZeRO1,
    "fsdp": FSDP,
    "invariant": Invariant,
    "shm": SharedMemory,
    "invariant_shm": InvariantSharedMemory,
}


# the plain module: in one process it trains alone, in several without communication
PLAIN = "minitrain.sync:Strategy"


def find_strategy(name: str) -> type[Strategy]:
    """The strategy of that name, or the class that package.module:Class says.

    Raises UserError (one line) where there is none.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        allowed = ", ".join(STRATEGIES)
        raise UserError(
            f"train.sync = {name!r}: must be one of {allowed}, or package.module:Class"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"train.sync = {name!r}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise UserError(
            f"train.sync = {name!r}: must be a minitrain.sync.strategy.Strategy"
        )
    return found
