"""Process groups in five verbs: set up, wrap, ask, wait, clean up.

Under torchrun (or :func:`minitrain.distributed.launcher.launch`) the environment says
who this process is; without one, it is a world of one. Ranks of one host, which we
start ourselves, meet in a file that only their user can open, and talk over loopback:
torch's TCP store listens on every interface, asks nobody for a name, and whoever can
write into it runs code here. Ranks of several hosts, which the user's torchrun starts,
meet at its MASTER_ADDR.
"""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from minitrain.core.errors import UserError
from minitrain.distributed.torch_private import FileStore, HashStore, PrefixStore, Store

LOOPBACK = "127.0.0.1"
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# where ranks that we started meet: this variable has the path of a file
STORE = "MINITRAIN_STORE"
BACKENDS = ("gloo", "nccl")
_joined = itertools.count()


def local_device(backend: str) -> torch.device:
    """The device of this rank: the GPU of its local rank for nccl, else the CPU."""
    if backend != "nccl":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def init_distributed(backend: str = "gloo", *, timeout_s: int = 120) -> tuple[int, int]:
    """Join the process group that the environment describes -> (rank, world_size).

    Every later wait for another rank ends with an error after ``timeout_s`` seconds.
    Raises UserError for an unknown backend, an incomplete environment, nccl without
    enough GPUs, and a MASTER_PORT that is in use.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend = {backend!r}: must be one of {', '.join(BACKENDS)}")
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
    timeout = timedelta(seconds=timeout_s)
    if missing:
        # a world of one needs no port
        dist.init_process_group(
            backend, timeout=timeout, store=HashStore(), rank=0, world_size=1
        )
        return 0, 1
    store, rank, world_size = _meet(timeout)
    # a second group must not find the addresses that the first left in the store
    store = PrefixStore(f"minitrain {next(_joined)}", store)
    dist.init_process_group(
        backend, timeout=timeout, store=store, rank=rank, world_size=world_size
    )
    return rank, world_size


def names_of_a_rank() -> tuple[str, ...]:
    """The variables that say who a rank is, and where it meets the others."""
    return ("RANK", "WORLD_SIZE", STORE) if STORE in os.environ else ENVIRONMENT


def _meet(timeout: timedelta) -> tuple[Store, int, int]:
    if STORE in os.environ:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # ranks that torchrun started again must not read what the first ones wrote
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        file = FileStore(f"{os.environ[STORE]}-{again}", world_size)
        file.set_timeout(timeout)
        return file, rank, world_size
    try:
        return next(rendezvous("env://", timeout=timeout))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise UserError(port_in_use(os.environ["MASTER_PORT"])) from None


def one_host(store: Path) -> dict[str, str]:
    """The environment of ranks of one host: they meet in the file ``store``, whose
    folder nobody else may enter. gloo listens on loopback, unless GLOO_SOCKET_IFNAME
    asks for another interface. Raises UserError where there is no loopback.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or loopback_interface()
    return {STORE: str(store), "GLOO_SOCKET_IFNAME": interface}


def loopback_interface() -> str:
    """Its name on this host; UserError where there is none, or it is down."""
    names = [name for _, name in socket.if_nameindex()]
    try:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
        return next(name for name in names if name.startswith("lo"))
    except (OSError, StopIteration):
        raise UserError(
            f"network: no loopback interface is up (interfaces: {', '.join(names)}): "
            "ranks of one host talk over it; GLOO_SOCKET_IFNAME names another"
        ) from None


def require_gpus(count: int) -> None:
    """Raise UserError unless this machine has ``count`` GPUs: nccl needs one a rank."""
    available = torch.cuda.device_count()
    if count > available:
        raise UserError(
            f"nccl.world_sizes: {count} processes need {count} GPUs, one each; "
            f"this machine has {available}"
        )


def port_in_use(port: str | int) -> str:
    """The line that a user reads when MASTER_PORT is taken."""
    return (
        f"environment: MASTER_PORT = {port} is in use; "
        "unset it or choose a free port from 1 to 65535"
    )


def require_free_port(port: str) -> None:
    """Raise UserError unless ``port`` is a number from 1 to 65535 and not in use."""
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UserError(
            f"environment: MASTER_PORT = {port!r}: must be a port from 1 to 65535"
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, int(port)))
        except OSError:
            raise UserError(port_in_use(port)) from None


def wrap_for_ddp(
    model: nn.Module,
    process_group: dist.ProcessGroup | None = None,
    *,
    bucket_cap_mb: float | None = None,
    find_unused_parameters: bool = False,
    gradient_as_bucket_view: bool = False,
) -> DistributedDataParallel:
    """``model`` under stock DDP: rank 0's weights and buffers everywhere. Collective.

    Gradients are averaged over the ranks of ``process_group`` (all of them when it is
    None) during backward. ``bucket_cap_mb`` in MiB; None is torch's default, with a
    smaller first bucket. All other settings of torch are at their defaults.
    """
    wrapped = DistributedDataParallel(
        model,
        process_group=process_group,
        bucket_cap_mb=bucket_cap_mb,
        find_unused_parameters=find_unused_parameters,
        gradient_as_bucket_view=gradient_as_bucket_view,
    )
    # If torch's Reducer is the last owner of a group that was left, it joins gloo's
    # threads while it holds the GIL, and a thread that still needs the GIL never ends.
    # This owner gives the GIL up, and goes after the Reducer: attributes go in order.
    owner = _Owner(wrapped.process_group)
    object.__setattr__(wrapped, "group_outlives_reducer", owner)
    return wrapped


class _Owner:
    """Holds a group, which cannot be copied; so that a wrapper without a hook can."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def __reduce__(self) -> tuple[type["_Owner"], tuple[()]]:
        return _Owner, ()


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside a DDP wrapper: its state dict has no ``module.`` prefix."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, nn.Module)
    return inner


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
    backend: str = "gloo", *, timeout_s: int = 120
) -> Iterator[tuple[int, int]]:
    """:func:`init_distributed` and, however the body ends, :func:`cleanup`."""
    try:
        yield init_distributed(backend, timeout_s=timeout_s)
    finally:
        cleanup()
