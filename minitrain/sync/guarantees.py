"""Guarantees and requirements of every strategy: a table for checks, docs and report.

This module does not import torch, so that params.yaml can be checked in a fraction of a
second. The class attribute ``guarantees`` of a strategy is its row of the table.
"""

import json
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from minitrain.core.errors import UserError
from minitrain.core.params import Train

# In this order: each parameter is reduced once per step; results equal a replay in one
# process bit for bit; they are close to one process with the whole batch; the loss is
# close to the loss of one process
Promise = Literal["reduced_once", "replay", "one_process", "loss"]
# gloo's ring; a balanced binary tree; a tree inside each host, then a ring among the
# hosts; no fixed order
Order = Literal["ring", "tree", "hosts", "none"]
EXACT: frozenset[Promise] = frozenset({"reduced_once", "replay", "one_process"})


@dataclass(frozen=True)
class Defaults:
    """Settings of strategies, as in section ``train`` of params.yaml, with defaults."""

    bucket_cap_mb: float | None = None
    overlap: bool = True
    find_unused_parameters: bool = False
    logical_shards: int = 8


DEFAULTS = Defaults()
Tuning: TypeAlias = Train | Defaults


@dataclass(frozen=True)
class Guarantees:
    """Properties of a strategy, which decide how a run is checked, and requirements.

    Args:
        promises: What is checked; see :data:`Promise`.
        adds_in: Order in which the ranks' gradients are added. With ``hosts`` the
            strategy records the ranks of each host in ``trace.hosts``, which is passed
            to its ``reference``.
        wire: Torch type to which gradients are rounded for transport; None: unchanged.
        averages: The sum is divided by the number of ranks.
        has_buckets: The strategy uses DDP's buckets, so their settings apply.
        logical_shards: A batch is cut into ``train.logical_shards`` at any world size.
        own_buffers: After a step the model's buffers depend on the rank's own samples.
        waits_within: A rank may wait for other ranks before its last gradient is
            computed, so that time is not only the rank's computation.
        on_one_host: All ranks must be on one host.
        on_cpu: Ranks compute on the CPU, so the backend nccl has no use.
        shares_parameters: Ranks share one copy of the parameters, so comparing them
            between ranks shows nothing.
        fp16: End of a message why float16 is not supported; empty if it is.
    """

    promises: frozenset[Promise] = EXACT
    adds_in: Order = "ring"
    wire: Literal["float16", "bfloat16"] | None = None
    averages: bool = True
    has_buckets: bool = False
    logical_shards: bool = False
    own_buffers: bool = True
    waits_within: bool = False
    on_one_host: bool = False
    on_cpu: bool = False
    shares_parameters: bool = False
    fp16: str = ""

    @property
    def are_exact(self) -> bool:
        """True if gradients are exact up to rounding, so the witness can check them."""
        return bool({"replay", "one_process"} & self.promises)

    def num_shards(self, world_size: int, tuning: Tuning) -> int:
        """Return the number of shards of a global batch; by default one per rank."""
        return tuning.logical_shards if self.logical_shards else world_size

    def require(self, tuning: Tuning, world_size: int, precision: str) -> None:
        """Raise UserError for a setting or precision that the strategy cannot use."""
        for key in ("bucket_cap_mb", "overlap", "find_unused_parameters"):
            value, default = getattr(tuning, key), getattr(DEFAULTS, key)
            if not self.has_buckets and value != default:
                raise UserError(
                    f"train.{key} = {json.dumps(value)}: must be {json.dumps(default)} "
                    "with a train.sync that does not use DDP's buckets"
                )
        if self.fp16 and precision == "fp16":
            raise UserError(
                f"train.precision = 'fp16': must be float32 or bf16 with {self.fp16}"
            )
        shards = tuning.logical_shards
        if self.logical_shards and shards & (shards - 1):
            raise UserError(f"train.logical_shards = {shards}: must be a power of two")
        if self.logical_shards and shards % world_size:
            raise UserError(
                f"train.logical_shards = {shards}: must be a multiple of the world "
                f"size, which is {world_size}"
            )


DDP = Guarantees(has_buckets=True)
# rounding to 16 bits is far coarser than the tolerances for one process
COMPRESSED = replace(DDP, promises=frozenset({"reduced_once", "replay"}))
TREE = Guarantees(
    adds_in="tree", averages=False, logical_shards=True, own_buffers=False
)
GUARANTEES: dict[str, Guarantees] = {
    "ddp": DDP,
    "per_parameter": Guarantees(),
    "flat": Guarantees(),
    "reduce_scatter": Guarantees(),
    "fp16_compress": replace(COMPRESSED, wire="float16"),
    "bf16_compress": replace(COMPRESSED, wire="bfloat16"),
    "powersgd": Guarantees(
        promises=frozenset({"reduced_once", "loss"}),
        adds_in="none",
        has_buckets=True,
        fp16="PowerSGD, which carries an overflow on in its error memory",
    ),
    "zero1": DDP,
    "fsdp": Guarantees(
        promises=frozenset({"one_process"}),
        adds_in="none",
        waits_within=True,
        fp16="FSDP, whose ranks see an overflow each in its own part",
    ),
    "invariant": TREE,
    "shm": replace(DDP, adds_in="tree", on_one_host=True, on_cpu=True),
    "invariant_shm": replace(TREE, on_one_host=True, on_cpu=True),
    "one_copy": Guarantees(
        adds_in="tree", on_one_host=True, on_cpu=True, shares_parameters=True
    ),
    "hierarchical": replace(DDP, adds_in="hosts", waits_within=True, on_cpu=True),
}
