"""Process groups in five verbs, and stock DDP: what a script of your own needs."""

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
