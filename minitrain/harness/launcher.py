"""Launchers of ranks: a function from Python or a notebook, or a module under torchrun.

:func:`run_as_ranks` makes one script both launcher and rank, on one or more hosts. Lost
ranks are restarted from the newest checkpoint; after an exception they are not.

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
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from minitrain.comm.store import (
    HOSTS,
    INTERFACES,
    MEET_AT,
    RUN_ID,
    STORE,
    interfaces,
    names_of_a_rank,
    our_store,
    variables,
)
from minitrain.comm.torch_private import HashStore
from minitrain.core.errors import RankError, UserError
from minitrain.core.files import writing
from minitrain.core.printable import print_note
from minitrain.core.signals import LAUNCHER_PID
from minitrain.harness.failures import RAISED
from minitrain.harness.hang_monitor import HangMonitor
from minitrain.harness.host_rendezvous import HostRendezvous, join_hosts
from minitrain.harness.hosts import Hosts
from minitrain.harness.rank import PAYLOAD, as_rank
from minitrain.harness.run_dir import private_folder

RENDEZVOUS = "minitrain"


def rank_environment(rank: int, world_size: int, folder: Path) -> dict[str, str]:
    """Return environment variables for a new process, a rank of a run on this host
    only. All ranks rendezvous through a file in ``folder``, and exit with this process.
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
    would need MASTER_ADDR. ``threads_per_process`` sets OMP_NUM_THREADS. No process is
    left running in any case.

    Raises:
        RankError: a rank failed, or ``timeout_s`` seconds have passed.
        UserError: ``world_size`` is below 1, or a rank raised it.
    """
    if world_size < 1:
        raise UserError(f"world_size = {world_size}: must be at least 1")
    try:
        payload = cloudpickle.dumps((torch.get_default_dtype(), fn, args))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"fn or args cannot be sent to the ranks: {reason}") from None
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
        files = [folder / f"result-{rank}" for rank in codes]
        return [cloudpickle.loads(file.read_bytes()) for file in files]


def _start(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        # -P: a file of the working folder must not hide a module
        [sys.executable, "-P", "-m", "minitrain.harness.rank"],
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

    If ``rendezvous`` is None, all ranks run on this host. Otherwise every host calls
    this function and runs its share. ``threads_per_process`` sets OMP_NUM_THREADS.
    Raises the UserError that a rank raised, or a RankError that names the rank and why
    it exited or where it hangs; all hosts raise the same error.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # torchrun's page about a failed rank, which is raised as an exception instead
    logging.disable(logging.ERROR)
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
        cause: Exception | None = monitor.cause(codes)
        # ranks of another host may have failed
        if cause := rendezvous.agree_on(cause) if rendezvous else cause:
            raise cause


def _options(folder: Path, num_ranks: int, attempt: str) -> list[str]:
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(RENDEZVOUS, _rendezvous)
    options = [
        "--nnodes=1",
        f"--rdzv-backend={RENDEZVOUS}",
        f"--rdzv-id={attempt}",
        f"--nproc-per-node={num_ranks}",
        f"--log-dir={folder}",
        # torchrun would forward signals, and each rank print a traceback. Stages raise
        # an exception (minitrain.core.signals), on which torchrun sends SIGTERM.
        "--signals-to-handle=none",
    ]
    # seconds until SIGKILL; torch 2.11 has no such option, and waits 30
    if "--shutdown-timeout" in run.get_args_parser().format_usage():
        options.append("--shutdown-timeout=2")
    return options


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
    # a /proc that hides processes stops nothing
    with suppress(psutil.Error, OSError):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                env = child.environ()
                if Path(env.get(STORE, "")).parent == folder and "LOCAL_RANK" in env:
                    found[int(env["LOCAL_RANK"])] = child.pid
    return found


def run_as_ranks(
    module: str,
    body: Callable[[str], None],
    world_size: int,
    *,
    threads_per_process: int,
    preflight: Callable[[], None] = lambda: None,
    max_restarts: int = 0,
    hosts: Hosts | None = None,
    timeout_s: float = 120,
) -> None:
    """Run ``body`` in ``world_size`` ranks; the launcher's name, "torchrun", is passed
    to ``body``.

    In a rank started by torchrun, runs ``body``. In any other process, calls
    ``preflight``, then starts ``python -m module`` with the arguments of this process
    under torchrun, and again if a rank is lost (see :func:`with_restarts`). Waits
    ``timeout_s`` seconds for other ``hosts``, if any.

    Raises:
        UserError: this rank belongs to a run of another size; a rank raised it; or a
            host is missing.
        RankError: a rank failed, and is not restarted.
    """
    # both are needed: torchrun variables can be inherited by a process that is no rank
    if RUN_ID in os.environ and all(name in os.environ for name in names_of_a_rank()):
        _count_all_hosts()
        if os.environ["WORLD_SIZE"] != str(world_size):
            raise UserError(
                f"environment: WORLD_SIZE = {os.environ['WORLD_SIZE']} does not match "
                f"a run of {world_size}; if torchrun did not start this process, unset "
                f"{RUN_ID}"
            )
        with as_rank():
            body("torchrun")
        return
    start = partial(
        torchrun,
        module,
        sys.argv[1:],
        world_size,
        threads_per_process=threads_per_process,
    )
    preflight()
    if hosts is None:
        return with_restarts(start, max_restarts)
    with join_hosts(hosts, timeout_s, world_size) as rendezvous:
        with_restarts(partial(start, rendezvous=rendezvous), max_restarts)


def _count_all_hosts() -> None:
    # torchrun numbers the ranks of each host from 0; make them global
    if our_store() is None or HOSTS not in os.environ:
        return
    number, count = map(int, os.environ[HOSTS].split())
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    rank = number * here + int(os.environ["LOCAL_RANK"])
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{count * here}"}
    os.environ |= {"GROUP_RANK": f"{number}", "GROUP_WORLD_SIZE": f"{count}"}


def with_restarts(attempt: Callable[[], None], max_restarts: int) -> None:
    """Call ``attempt``, and again after a RankError, up to ``max_restarts`` times.

    Prints the failure on stderr before each restart. Raises the RankError if no restart
    is left, or if a rank raised an exception of its own, as with a bug.
    """
    for count in range(1, max_restarts + 2):
        try:
            return attempt()
        except RankError as error:
            if error.kind == RAISED or count > max_restarts:
                raise
            line = " ".join(str(error).split())
            print_note(f"{line}; restarting ({count} of {max_restarts})")
