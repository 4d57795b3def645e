"""Every use of what torch does not document, each with its reason.

Written for torch 2.13; environment.torch in params.yaml pins the release. After an
upgrade this is the one file to read against torch's source.
"""

import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
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

# the first with ProcessGroup.get_group_store, in which ranks that record meet
OLDEST = "2.9"
if torch.__version__ < OLDEST:
    raise UserError(f"torch {torch.__version__}: minitrain needs {OLDEST} or newer")

# nanoseconds of the last step; torch's averages begin with the first step
LOGGED = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)


def at_the_end_of_backward(do: Callable[[], None]) -> None:
    """Call ``do`` when the backward pass that is under way has computed all gradients,
    after what was queued before it: as DDP and FSDP queue their last work. To be called
    within a hook of that pass.
    """
    torch.autograd.Variable._execution_engine.queue_callback(do)


def parameters_of_ddp(wrapper: Any) -> list[Tensor]:
    """The parameters that DistributedDataParallel found in its model when it was built,
    frozen ones too; empty for another wrapper.
    """
    return [*getattr(wrapper, "_module_parameters", ())]


def set_group_timeout(seconds: float) -> None:
    """Let every wait in the group of all ranks take ``seconds`` from now on."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def limit_silence(address: str, port: int, limit_s: float) -> None:
    """Limit each read from ``address``:``port`` in this process to ``limit_s`` for the
    next byte. A TCPStore would wait a quarter of an hour for a host that vanished, and
    for ever for one that was stopped; at this limit it raises ``DistNetworkError``.
    Torch has no access to its socket.
    """
    seconds, rest = divmod(limit_s, 1)
    limit = struct.pack("@ll", int(seconds), int(rest * 1e6))
    for fd in map(int, os.listdir("/proc/self/fd")):
        # what is no socket, has no peer, or was closed just now
        with suppress(OSError):
            line = socket.socket(fileno=fd)
            try:
                # torch talks IPv4 by sockets of IPv6; the peer of others may be a path
                internet = line.family in (socket.AF_INET, socket.AF_INET6)
                peer, there = line.getpeername()[:2] if internet else ("", 0)
                if (peer.removeprefix("::ffff:"), there) == (address, port):
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            finally:
                # it is not ours to close
                line.detach()


def group_by(ranks: Sequence[int], name: str, timeout_s: float) -> dist.ProcessGroup:
    """A gloo group of ``ranks`` of the world, which these alone call for; ``name`` is
    the same on all of them, and was never used.

    ``new_group`` waits for ranks that are not to be in it, or else names the group by
    its ranks and the number of groups that this process is in: another number than on
    its peers, or the name of a group that has gone, and they never meet.
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
    # what new_group does, too: of each rank of the world its number in the group
    numbers = {rank: number for number, rank in enumerate(ranks)}
    torch_groups._world.pg_group_ranks[group] = numbers
    return group


def ddp_times_ns(ddp: Any) -> tuple[float, ...] | None:
    """DDP's own times of the last step, by :data:`LOGGED`; None where this torch does
    not have them. Unasked, DDP logs ten steps, then every hundredth.
    """
    try:
        ddp._set_ddp_runtime_logging_sample_rate(1)
        # what the next forward pass would do: take the times of this step
        ddp.logger.set_runtime_stats_and_log()
        data = ddp._get_ddp_logging_data()
        return tuple(data[key] for key in LOGGED)
    # another torch may name or place it otherwise: the times are an extra
    except (AttributeError, KeyError, TypeError, RuntimeError):
        return None


def around_parameter_broadcast(
    zero: Any, around: Callable[[Callable[[], None]], None]
) -> None:
    """Let ``around`` call what broadcasts the parameters after each step of a
    ZeroRedundancyOptimizer, all of its communication: it has no hook for it.
    """
    broadcast = zero._sync_params
    zero._sync_params = lambda: around(broadcast)


def own_part_of(zero: Any) -> Any:
    """The optimizer of the parameters that this rank steps, inside a
    ZeroRedundancyOptimizer, whose own ``state_dict`` is that of all ranks.
    """
    return zero.optim


def overflows_of(scaler: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors (1,) in which a GradScaler notes on each device that a gradient which
    it has unscaled for ``optimizer`` is not finite: it skips the step by them.
    """
    return list(scaler._found_inf_per_device(optimizer).values())


def changes_in_place(tensor: Tensor) -> int:
    """Number of changes of ``tensor`` in place, as autograd counts them."""
    return tensor._version


def add_all(to: Sequence[Tensor], more: Sequence[Tensor]) -> None:
    """``to[i] += more[i]`` in one call: for small ones ten times faster than a loop."""
    torch._foreach_add_(list(to), list(more))


def collective_name(func: Any) -> str | None:
    """Name the collective of a dispatched operator, such as ``allreduce_``; None for
    other operators.
    """
    namespace, _, name = func._schema.name.partition("::")
    # functional collectives have operators of their own, which call no c10d operator
    functional = namespace.startswith("_c10d_functional")
    functional = functional and not name.startswith(("_wrap", "wait"))
    return str(name) if namespace == "c10d" or functional else None
