"""Starting ranks: of a function, from plain Python, scripts and notebooks, or of a
module, under torchrun.

Either way ranks meet in a file of a private folder, a failure comes back as one
exception that names the rank, and no process is left behind: a rank ends when the
process that started it is gone, even after kill -9. torchrun runs inside the launching
process, so that process is the parent of the ranks, and no page of text is printed. On
several hosts each torchrun knows of its own ranks alone; the hosts meet in
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
from minitrain.harness.host_rendezvous import Gathering
from minitrain.harness.rank import PAYLOAD
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

RANK_PROGRAM = "minitrain.harness.rank"
RENDEZVOUS = "minitrain"
# torchrun would pass a signal on, and each rank print a traceback. Stages make it an
# exception (minitrain.core.signals), at which torchrun sends SIGTERM to the ranks.
SIGNALS = "none"
# from SIGTERM to SIGKILL for the ranks that are left
SHUTDOWN_S = 2


def rank_environment(rank: int, world_size: int, folder: Path) -> dict[str, str]:
    """Environment of a rank of one host, and the ``folder`` where it meets the others:
    to be added to ``os.environ``. The rank ends when the calling process does.
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
    """Run ``fn(*args)`` in ``world_size`` new processes -> their results, by rank.

    Functions of a notebook cell, and of a script without a main guard, work: they
    travel by value (cloudpickle), and torch's default dtype with them. ``fn`` joins the
    others with :func:`minitrain.ddp.distributed`; torch's own ``init_process_group``
    finds no MASTER_ADDR here. Raises RankError (a rank's UserError as such) for the
    first rank that fails, and when ``timeout_s`` seconds have passed;
    UserError for a ``world_size`` below 1. No process is left in any case.
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
        # what it starts ends with it
        start_new_session=True,
    )


def torchrun(
    module: str,
    arguments: list[str],
    world_size: int,
    *,
    threads_per_process: int,
    gathering: Gathering | None = None,
) -> None:
    """Run ``python -m module arguments`` as ``world_size`` ranks under torchrun.

    All of them on this host, where they meet in a file: nothing listens but gloo, on
    loopback, and with nccl what NCCL opens. Or on all hosts of ``gathering``, each of
    which calls this. Raises the first failing rank's UserError, or RankError with
    the rank and how it ended, or where it hangs; the same on all hosts.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _silence("torch.distributed")
    attempt = gathering.attempt if gathering else "attempt-1"
    here = gathering.hosts.ranks_here(world_size) if gathering else world_size
    begin = gathering.number * here if gathering else 0
    pids: dict[int, int] = {}
    codes: dict[int, int] = {}

    with private_folder() as folder:
        environment = _environment(folder, gathering)
        environment["OMP_NUM_THREADS"] = str(threads_per_process)

        def known() -> dict[int, int]:
            if len(pids) < here:
                found = _ranks_among_children(folder)
                pids.update({begin + rank: pid for rank, pid in found.items()})
            return pids

        options = _options(folder, here, attempt)
        elsewhere = gathering.ended_elsewhere if gathering else None
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
        # what ended well here may not have done so elsewhere
        if cause := gathering.agree_on(cause) if gathering else cause:
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
    # Torch's own serves TCP on every interface, or polls a file, for ever where a full
    # disk cut its last record. This one is in memory: ranks meet in comm.store.
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


def _environment(folder: Path, gathering: Gathering | None = None) -> dict[str, str]:
    ours = {STORE: str(folder / "ranks"), LAUNCHER_PID: str(os.getpid())}
    if gathering is None:
        return {**ours, INTERFACES: interfaces()}
    hosts, name = gathering.hosts, gathering.hosts.interface.name
    return {
        **ours,
        INTERFACES: name,
        # not every interface whose name begins so
        "NCCL_SOCKET_IFNAME": f"={name}",
        MEET_AT: f"{hosts.port} {hosts.address}",
        HOSTS: f"{gathering.number} {hosts.count}",
    }


def _ranks_among_children(folder: Path) -> dict[int, int]:
    import psutil

    # torchrun does not name its processes: those of the run in folder, by local rank
    found = {}
    # in a container /proc may be hidden, or that of another namespace
    with suppress(psutil.Error, OSError):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                told = child.environ()
                if Path(told.get(STORE, "")).parent == folder and "LOCAL_RANK" in told:
                    found[int(told["LOCAL_RANK"])] = child.pid
    return found


def _silence(package: str) -> None:
    # what matters in its log lines comes back as an exception
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.CRITICAL)
