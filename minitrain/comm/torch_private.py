"""Uses of private functions of torch, each with its reason.

Written for torch 2.13; environment.torch in params.yaml pins the release. After an
upgrade, compare this file with torch's source.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# documented as torch.distributed.X, where type checkers do not find them
from torch._C._distributed_c10d import FileStore as FileStore
from torch._C._distributed_c10d import GradBucket as GradBucket
from torch._C._distributed_c10d import HashStore as HashStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

from minitrain.core.errors import UserError

# the first with ProcessGroup.get_group_store, which the recorder uses
OLDEST = "2.9"
if torch.__version__ < OLDEST:
    raise UserError(f"torch {torch.__version__}: minitrain needs {OLDEST} or newer")

COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
# keys in DDP's log: nanoseconds of the last step; its averages begin with the first
LOGGED = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)


def at_the_end_of_backward(do: Callable[[], None]) -> None:
    """Have autograd call ``do`` once, when the current backward pass has computed all
    gradients, after previously queued callbacks, such as DDP's and FSDP's. Call this
    function within a gradient hook of that pass.
    """
    torch.autograd.Variable._execution_engine.queue_callback(do)


def set_group_timeout(seconds: float) -> None:
    """Set the timeout of later collectives in the default process group."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def group_by(ranks: Sequence[int], name: str, timeout_s: float) -> dist.ProcessGroup:
    """Return a new gloo group of ``ranks``, global ranks. Collective over these ranks
    only. ``name`` must be unused, and the same on all of them.

    ``dist.new_group`` waits for all ranks of the world. With
    ``use_local_synchronization`` the group's name depends on how many groups this
    process has: if that number differs between ranks, they never connect.
    """
    torch_groups: Any = dist.distributed_c10d
    group: dist.ProcessGroup
    group, _ = torch_groups._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        [*ranks],
        dist.Backend(dist.Backend.GLOO),
        torch_groups._get_default_store(),
        name,
        timeout=timedelta(seconds=timeout_s),
    )
    # as new_group does: the number in the group of each rank of the world
    numbers = {rank: number for number, rank in enumerate(ranks)}
    torch_groups._world.pg_group_ranks[group] = numbers
    return group


def import_compiler() -> None:
    """Import torch's compiler, which every optimizer and DDP import, but without the
    empty cache folder that the import leaves in TMPDIR.
    """
    if COMPILER_CACHE in os.environ or "torch._dynamo" in sys.modules:
        return
    # an existing folder, so that none is made
    os.environ[COMPILER_CACHE] = tempfile.gettempdir()
    try:
        importlib.import_module("torch._dynamo")
    finally:
        del os.environ[COMPILER_CACHE]


def ddp_times_ns(ddp: Any) -> tuple[float, ...] | None:
    """Return DDP's times of the last step in ns, in the order of :data:`LOGGED`; None
    if this torch has none. Also makes DDP log every step instead of every hundredth.
    """
    try:
        ddp._set_ddp_runtime_logging_sample_rate(1)
        # the next forward pass would do this: store the times of this step
        ddp.logger.set_runtime_stats_and_log()
        data = ddp._get_ddp_logging_data()
        return tuple(data[key] for key in LOGGED)
    # another torch may have other names, and the times are optional
    except (AttributeError, KeyError, TypeError, RuntimeError):
        return None


def around_parameter_broadcast(
    zero: Any, around: Callable[[Callable[[], None]], None]
) -> None:
    """Have the ZeroRedundancyOptimizer ``zero`` call ``around(f)`` after each step
    instead of f, the function that broadcasts parameters; ``around`` must call f.
    """
    broadcast = zero._sync_params
    zero._sync_params = lambda: around(broadcast)


def own_part_of(zero: Any) -> Any:
    """Return the optimizer inside the ZeroRedundancyOptimizer ``zero`` that steps only
    this rank's share of the parameters.
    """
    return zero.optim


def overflows_of(scaler: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the overflow flags of a GradScaler, a tensor (1,) per device: if a flag is
    not 0, a gradient is not finite, and the scaler skips the step of ``optimizer``.
    """
    return list(scaler._found_inf_per_device(optimizer).values())


def changes_in_place(tensor: Tensor) -> int:
    """Return autograd's version counter of ``tensor``, a count of in-place changes."""
    return tensor._version


def add_all(to: Sequence[Tensor], more: Sequence[Tensor]) -> None:
    """Add ``more[i]`` to ``to[i]`` in place; faster than a loop for small tensors."""
    torch._foreach_add_(list(to), list(more))


def collective_name(func: Any) -> str | None:
    """Return the name of the collective that the torch operator ``func`` calls, such as
    ``allreduce_``; None if it is no collective.
    """
    namespace, _, name = func._schema.name.partition("::")
    # functional collectives have operators of their own, which call no c10d operator
    functional = namespace.startswith("_c10d_functional")
    functional = functional and not name.startswith(("_wrap", "wait"))
    return str(name) if namespace == "c10d" or functional else None
