"""Launchers of ranks: a function from Python or a notebook, or a module under torchrun.

Ranks rendezvous through a file in a private folder, a failure is raised as one
exception that names the rank, and no process is left behind: ranks exit with the
process that started them, even after kill -9. torchrun runs inside the launching
process, which is thus the parent of the ranks, and its error page is not printed. On
several hosts each torchrun knows only its own ranks; the hosts are connected by
:mod:`minitrain.harness.host_rendezvous`.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from minitrain.comm.store import (
    HOSTS,
    INTERFACES,
    MEET_AT,
    STORE,
    interfaces,
    variables,
)
from minitrain.comm.torch_private import HashStore
from minitrain.core.errors import UserError
from minitrain.core.files import writing
from minitrain.core.signals import LAUNCHER_PID
from minitrain.harness.hang_monitor import HangMonitor
from minitrain.harness.host_rendezvous import HostRendezvous
from minitrain.harness.rank import PAYLOAD
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

RANK_PROGRAM = "minitrain.harness.rank"
RENDEZVOUS = "minitrain"
# torchrun would forward signals, and each rank print a traceback. Stages raise an
# exception instead (minitrain.core.signals), on which torchrun sends SIGTERM.
SIGNALS = "none"
# from SIGTERM to SIGKILL
SHUTDOWN_S = 2


def rank_environment(rank: int, world_size: int, folder: Path) -> dict[str, str]:
    """Return the environment variables of a rank on a single host, whose ranks
    rendezvous in ``folder``. The rank exits with the calling process.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        **_environment(folder),
    }


def launch(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    threads_per_process: int = 1,
    timeout_s: float = 300,
) -> list[Any]:
    """Run ``fn(*args)`` in ``world_size`` new processes and return the results by rank.

    ``fn`` is pickled by value (cloudpickle), so functions of a notebook cell or of a
    script without a main guard work; torch's default dtype is passed on. ``fn`` joins
    the group with :func:`minitrain.ddp.distributed`; torch's ``init_process_group``
    would need MASTER_ADDR. No process is left running in any case.

    Raises:
        RankError: a rank failed, or ``timeout_s`` seconds have passed.
        UserError: ``world_size`` is below 1, or a rank raised it.
    """
    if world_size < 1:
        raise UserError(f"world_size = {world_size}: must be at least 1")
    payload = cloudpickle.dumps((torch.get_default_dtype(), fn, args))
    processes: list[subprocess.Popen[bytes]] = []
    pids: dict[int, int] = {}

    with private_folder() as folder:
        with writing(folder / PAYLOAD):
            (folder / PAYLOAD).write_bytes(payload)
        monitor = HangMonitor(folder, lambda: pids, timeout_s=timeout_s)
        try:
            for rank in range(world_size):
                environment = rank_environment(rank, world_size, folder)
                environment["OMP_NUM_THREADS"] = str(threads_per_process)
                processes.append(_start(environment))
                pids[rank] = processes[-1].pid
            with monitor.in_background():
                codes = {r: process.wait() for r, process in enumerate(processes)}
        finally:
            monitor.end_all()
            for process in processes:
                process.wait()
        if cause := monitor.cause(codes):
            raise cause
        print(native_words(folder, codes), end="", file=sys.stderr)
        files = [folder / f"result-{rank}" for rank in codes]
        return [cloudpickle.loads(file.read_bytes()) for file in files]


def _start(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", RANK_PROGRAM],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        # a new process group, so that its children are killed with it
        start_new_session=True,
    )


def torchrun(
    module: str,
    arguments: list[str],
    world_size: int,
    *,
    threads_per_process: int,
    rendezvous: HostRendezvous | None = None,
) -> None:
    """Run ``python -m module arguments`` as ``world_size`` ranks under torchrun.

    Without ``rendezvous`` all ranks run on this host: only gloo listens, on loopback,
    and NCCL if used. With it, every host calls this function. Raises the UserError of
    the first rank that failed, or a RankError with the rank and its cause of exit or
    the location of its hang; the same on all hosts.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _silence("torch.distributed")
    attempt = rendezvous.attempt if rendezvous else "attempt-1"
    here = rendezvous.hosts.ranks_here(world_size) if rendezvous else world_size
    begin = rendezvous.number * here if rendezvous else 0
    pids: dict[int, int] = {}
    codes: dict[int, int] = {}

    with private_folder() as folder:
        environment = _environment(folder, rendezvous)
        environment["OMP_NUM_THREADS"] = str(threads_per_process)

        def known() -> dict[int, int]:
            if len(pids) < here:
                found = _ranks_among_children(folder)
                pids.update({begin + rank: pid for rank, pid in found.items()})
            return pids

        options = _options(folder, here, attempt)
        elsewhere = rendezvous.ended_elsewhere if rendezvous else None
        monitor = HangMonitor(folder, known, elsewhere)
        try:
            with monitor.in_background(), variables(environment):
                run.run(run.parse_args([*options, "-m", module, *arguments]))
        except ChildFailedError as error:
            for rank, failure in error.failures.items():
                pids[begin + rank] = failure.pid
                codes[begin + rank] = failure.exitcode
        finally:
            monitor.end_all()
        cause = monitor.cause(codes)
        # ranks of another host may have failed
        if cause := rendezvous.agree_on(cause) if rendezvous else cause:
            raise cause
        print(native_words(folder, pids), end="", file=sys.stderr)


def _options(folder: Path, num_ranks: int, attempt: str) -> list[str]:
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(RENDEZVOUS, _rendezvous)
    return [
        "--nnodes=1",
        f"--rdzv-backend={RENDEZVOUS}",
        f"--rdzv-id={attempt}",
        f"--nproc-per-node={num_ranks}",
        f"--log-dir={folder}",
        f"--signals-to-handle={SIGNALS}",
        f"--shutdown-timeout={SHUTDOWN_S}",
    ]


def _rendezvous(parameters: Any) -> Any:
    # Torch's own serve TCP on every interface, or poll a file, forever if a full disk
    # truncated it. This one is in memory: the ranks use comm.store.
    from torch.distributed.elastic import rendezvous
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import (
        StaticTCPRendezvous,
    )

    class Alone(StaticTCPRendezvous):
        def next_rendezvous(self) -> rendezvous.RendezvousInfo:
            endpoint = rendezvous.RendezvousStoreInfo("", 0)
            return rendezvous.RendezvousInfo(HashStore(), 0, 1, endpoint)

        def get_backend(self) -> str:
            return RENDEZVOUS

    return Alone("", 0, 0, 1, parameters.run_id, 1)


def _environment(
    folder: Path, rendezvous: HostRendezvous | None = None
) -> dict[str, str]:
    ours = {STORE: str(folder / "ranks"), LAUNCHER_PID: str(os.getpid())}
    if rendezvous is None:
        return {**ours, INTERFACES: interfaces()}
    hosts, name = rendezvous.hosts, rendezvous.hosts.interface.name
    return {
        **ours,
        INTERFACES: name,
        # "=" for an exact match; NCCL matches prefixes by default
        "NCCL_SOCKET_IFNAME": f"={name}",
        MEET_AT: f"{hosts.port} {hosts.address}",
        HOSTS: f"{rendezvous.number} {hosts.count}",
    }


def _ranks_among_children(folder: Path) -> dict[int, int]:
    import psutil

    # pids by local rank, from the children's environment: torchrun does not expose them
    found = {}
    # in a container /proc may be hidden or belong to another namespace
    with suppress(psutil.Error, OSError):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                env = child.environ()
                if Path(env.get(STORE, "")).parent == folder and "LOCAL_RANK" in env:
                    found[int(env["LOCAL_RANK"])] = child.pid
    return found


def _silence(package: str) -> None:
    # errors are raised as exceptions instead
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.CRITICAL)
