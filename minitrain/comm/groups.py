"""Process groups: set up, wrap a model, query, wait, clean up.

Under torchrun (or :func:`minitrain.harness.launcher.launch`) the environment names
the rank of this process (:mod:`minitrain.comm.store`). Without such an environment the
process is rank 0 of 1.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.comm.heartbeat import STARTUP_S, my_heartbeat
from minitrain.comm.store import (
    INTERFACES,
    interfaces,
    meet,
    names_of_a_rank,
    require_same,
    variables,
)
from minitrain.comm.torch_private import (
    HashStore,
    import_compiler,
    set_group_timeout,
)
from minitrain.core.errors import UserError

BACKENDS = ("gloo", "nccl")
# limit of every wait between steps; torch has no public way to ask a group for it
_limit_s = 120.0


def local_device(backend: str) -> torch.device:
    """Return this rank's device: the GPU of its local rank for nccl, else the CPU."""
    if backend != "nccl":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def init_distributed(
    backend: str = "gloo",
    *,
    timeout_s: float = 120,
    same: Mapping[str, Any] | None = None,
) -> tuple[int, int]:
    """Join the process group that the environment describes; return rank, world size.

    Args:
        backend: ``gloo`` or ``nccl``.
        timeout_s: Limit in seconds of every wait for another rank, except that all
            ranks have at least STARTUP_S seconds to join.
        same: Plain values by name that must be equal on all ranks.

    Raises:
        UserError: An unknown backend, an incomplete environment, nccl without enough
            GPUs, a missing network interface or one that is down, a MASTER_PORT that is
            in use, or a value of ``same`` that differs between ranks.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend = {backend!r}: must be one of {', '.join(BACKENDS)}")
    if backend == "gloo" and INTERFACES in os.environ:
        interfaces()
    is_alone = _is_alone()
    device = local_device(backend)
    if device.type == "cuda":
        require_gpus(device.index + 1)
        torch.cuda.set_device(device)
    global _limit_s
    _limit_s = timeout_s
    startup = timedelta(seconds=max(STARTUP_S, timeout_s))
    # a rank that is stopped during rendezvous must not get the limit of a start-up
    my_heartbeat().limit(timeout_s)
    if is_alone:
        # A single rank needs no port. Without an interface gloo looks up this host's
        # name, and warns if it cannot be resolved.
        with variables({INTERFACES: interfaces()}):
            dist.init_process_group(
                backend, timeout=startup, store=HashStore(), rank=0, world_size=1
            )
        set_group_timeout(timeout_s)
        return 0, 1
    store, rank, world_size = meet(startup)
    if same is not None:
        require_same(store, rank, world_size, same)
    dist.init_process_group(
        backend, timeout=startup, store=store, rank=rank, world_size=world_size
    )
    if backend == "gloo":
        # a rank that exits at once would break the connection attempts of slower ranks
        dist.barrier()
    store.set_timeout(timedelta(seconds=timeout_s))
    set_group_timeout(timeout_s)
    return rank, world_size


def _is_alone() -> bool:
    needed = names_of_a_rank()
    missing = [name for name in needed if name not in os.environ]
    left = [name for name in needed if name in os.environ]
    if missing and left:
        raise UserError(
            f"environment: {missing[0]} is missing, which torchrun sets along with "
            f"{left[0]}; without torchrun, unset {', '.join(left)}"
        )
    return bool(missing)


@contextmanager
def start_up() -> Iterator[None]:
    """Context manager: in the body the limit of each wait for other ranks is at least
    :data:`STARTUP_S` seconds; a barrier follows the body. Collective. Groups that
    strategies create in the body have the limit :func:`group_timeout_s`.
    """
    set_group_timeout(max(_limit_s, STARTUP_S))
    yield
    dist.barrier()
    set_group_timeout(_limit_s)


def group_timeout_s() -> float:
    """Return ``timeout_s`` of :func:`init_distributed`, in seconds; 120 before it."""
    return _limit_s


def require_gpus(count: int) -> None:
    """Raise UserError unless this machine has ``count`` GPUs, one per rank."""
    available = torch.cuda.device_count()
    if count > available:
        raise UserError(
            f"nccl.world_sizes: {count} processes need {count} GPUs, one each; "
            f"this machine has {available}"
        )


def wrap_for_ddp(
    model: nn.Module, process_group: dist.ProcessGroup | None = None, **options: Any
) -> DistributedDataParallel:
    """Return ``model`` in stock DDP, with rank 0's weights and buffers. Collective.
    ``options`` are arguments of DDP. Delete copies of the wrapper before
    :func:`cleanup`.
    """
    import_compiler()
    wrapped = DistributedDataParallel(model, process_group=process_group, **options)
    # If torch's Reducer is the last owner of a destroyed group, it joins gloo's threads
    # while it holds the GIL, and a thread that still needs the GIL never ends. This
    # owner releases the GIL, and outlives the Reducer: attributes are freed in order.
    owner = _Owner(wrapped.process_group)
    object.__setattr__(wrapped, "group_outlives_reducer", owner)
    return wrapped


class _Owner:
    # a group cannot be copied, so a copy of a wrapper has an owner of nothing
    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def __reduce__(self) -> tuple[type["_Owner"], tuple[()]]:
        return _Owner, ()


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside a DDP wrapper; return any other ``model`` unchanged."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def num_hosts() -> int:
    """Return the number of hosts of this run; 1 if no launcher started the process."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def host_number() -> int:
    """Return the number of this host, from 0; 0 if no launcher started the process."""
    return int(os.environ.get("GROUP_RANK", "0"))


def is_main_process() -> bool:
    """Return True on rank 0, or without a process group."""
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier() -> None:
    """Wait for all ranks, at most for the timeout of the process group. Do nothing if
    there is no process group.
    """
    if dist.is_initialized():
        dist.barrier()


def cleanup() -> None:
    """Destroy the process group, if there is one. It is safe to call this twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def distributed(
    backend: str = "gloo",
    *,
    timeout_s: float = 120,
    same: Mapping[str, Any] | None = None,
) -> Iterator[tuple[int, int]]:
    """Context manager: yield rank and world size from :func:`init_distributed`, called
    with these arguments; call :func:`cleanup` after the body.
    """
    try:
        yield init_distributed(backend, timeout_s=timeout_s, same=same)
    finally:
        cleanup()
