"""Process groups in five verbs: set up, wrap, ask, wait, clean up.

Under torchrun (or :func:`minitrain.harness.launcher.launch`) the environment names
the rank of this process (:mod:`minitrain.comm.store`); without one, it is a world of
one.
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
    set_group_timeout,
)
from minitrain.core.errors import UserError

BACKENDS = ("gloo", "nccl")
# of every wait between steps; torch has no public way to ask a group for it
_limit_s = 120.0


def local_device(backend: str) -> torch.device:
    """The device of this rank: the GPU of its local rank for nccl, else the CPU."""
    if backend != "nccl":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def init_distributed(
    backend: str = "gloo",
    *,
    timeout_s: float = 120,
    same: Mapping[str, Any] | None = None,
) -> tuple[int, int]:
    """Join the process group that the environment describes -> (rank, world_size).

    The ranks have STARTUP_S seconds to come, or ``timeout_s`` if that is more.
    Every later wait for another rank ends with an error after ``timeout_s`` seconds.
    Raises UserError for an unknown backend, an incomplete environment, nccl without
    enough GPUs, a network interface that is not there or down, a MASTER_PORT that is in
    use, and facts (plain values, by name) that are not the ``same`` on all ranks.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend = {backend!r}: must be one of {', '.join(BACKENDS)}")
    if backend == "gloo" and INTERFACES in os.environ:
        interfaces()
    needed = names_of_a_rank()
    missing = [name for name in needed if name not in os.environ]
    if missing and len(missing) < len(needed):
        left = [name for name in needed if name in os.environ]
        raise UserError(
            f"environment: {missing[0]} is missing, which torchrun sets beside "
            f"{left[0]}; without torchrun, unset {', '.join(left)}"
        )
    device = local_device(backend)
    if device.type == "cuda":
        require_gpus(device.index + 1)
        torch.cuda.set_device(device)
    global _limit_s
    _limit_s = timeout_s
    startup = timedelta(seconds=max(STARTUP_S, timeout_s))
    # a rank that is stopped while others wait here is not given their time to start
    my_heartbeat().limit(timeout_s)
    if missing:
        # a world of one needs no port; without an interface gloo asks for this host's
        # name, and complains if it cannot be resolved
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
        # a rank that leaves at once would cut off one that still connects to it
        dist.barrier()
    store.set_timeout(timedelta(seconds=timeout_s))
    set_group_timeout(timeout_s)
    return rank, world_size


@contextmanager
def start_up() -> Iterator[None]:
    """Let waits for other ranks take :data:`STARTUP_S` in the body, and wait for all at
    its end. Collective. Groups that the body makes keep :func:`group_timeout_s`.
    """
    set_group_timeout(max(_limit_s, STARTUP_S))
    yield
    dist.barrier()
    set_group_timeout(_limit_s)


def group_timeout_s() -> float:
    """Return the ``timeout_s`` of :func:`init_distributed`, in seconds."""
    return _limit_s


def require_gpus(count: int) -> None:
    """Raise UserError unless this machine has ``count`` GPUs: nccl needs one a rank."""
    available = torch.cuda.device_count()
    if count > available:
        raise UserError(
            f"nccl.world_sizes: {count} processes need {count} GPUs, one each; "
            f"this machine has {available}"
        )


def wrap_for_ddp(
    model: nn.Module, process_group: dist.ProcessGroup | None = None, **options: Any
) -> DistributedDataParallel:
    """``model`` under stock DDP: rank 0's weights and buffers everywhere. Collective.

    Gradients are averaged over the ranks of ``process_group`` (all of them when it is
    None) during backward. ``options`` are those of DistributedDataParallel, such as
    ``bucket_cap_mb`` in MiB. Drop copies of the wrapper before :func:`cleanup`.
    """
    wrapped = DistributedDataParallel(model, process_group=process_group, **options)
    # If torch's Reducer is the last owner of a group that was left, it joins gloo's
    # threads while it holds the GIL, and a thread that still needs the GIL never ends.
    # This owner releases the GIL, and goes after the Reducer: attributes go in order.
    owner = _Owner(wrapped.process_group)
    object.__setattr__(wrapped, "group_outlives_reducer", owner)
    return wrapped


class _Owner:
    # holds a group, which cannot be copied; a copy of a wrapper holds none
    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def __reduce__(self) -> tuple[type["_Owner"], tuple[()]]:
        return _Owner, ()


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside a DDP wrapper: its state dict has no ``module.`` prefix."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, nn.Module)
    return inner


def num_hosts() -> int:
    """Number of hosts of this rank's run."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def host_number() -> int:
    """Number of this host among them, from 0."""
    return int(os.environ.get("GROUP_RANK", "0"))


def is_main_process() -> bool:
    """True on rank 0, and where there is no process group."""
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier() -> None:
    """Wait for all ranks, at most the timeout of the process group; without one, do
    not wait.
    """
    if dist.is_initialized():
        dist.barrier()


def cleanup() -> None:
    """Leave the process group, if there is one; harmless to call twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def distributed(
    backend: str = "gloo",
    *,
    timeout_s: float = 120,
    same: Mapping[str, Any] | None = None,
) -> Iterator[tuple[int, int]]:
    """:func:`init_distributed` and, however the body ends, :func:`cleanup`."""
    try:
        yield init_distributed(backend, timeout_s=timeout_s, same=same)
    finally:
        cleanup()
