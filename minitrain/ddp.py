"""Process groups and stock DDP, for a script of your own.

Other strategies to synchronize gradients are in :mod:`minitrain.sync`.
"""

from minitrain.comm.groups import (
    barrier,
    cleanup,
    distributed,
    init_distributed,
    is_main_process,
    unwrap,
    wrap_for_ddp,
)

__all__ = [
    "barrier",
    "cleanup",
    "distributed",
    "init_distributed",
    "is_main_process",
    "unwrap",
    "wrap_for_ddp",
]
