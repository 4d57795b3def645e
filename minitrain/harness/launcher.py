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
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from minitrain.comm.store import (
    HOSTS,
    INTERFACES,
    MEET_AT,
    STORE,
    loopback_interface,
    require_interfaces,
)
from minitrain.core.errors import UserError
from minitrain.core.files import writing
from minitrain.core.signals import LAUNCHER_PID, Stopped
from minitrain.harness.hang_monitor import HangMonitor
from minitrain.harness.host_rendezvous import Gathering
from minitrain.harness.processes import end, ranks_among_children
from minitrain.harness.rank import PAYLOAD
from minitrain.harness.rendezvous import rendezvous_options
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

RANK_PROGRAM = "minitrain.harness.rank"
# torchrun's way to share its rendezvous with the ranks is a TCP store on all interfaces
NO_TCP_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# Not SIGINT, which torchrun would pass on: each rank would print a traceback and be
# waited for. So Ctrl-C is an exception here, and the ranks get SIGTERM.
SIGNALS = "SIGTERM,SIGHUP,SIGQUIT"
# from SIGTERM to SIGKILL for the ranks that are left
SHUTDOWN_S = 2


def run_environment(folder: Path, interface: str = "") -> dict[str, str]:
    """Environment of ranks that this process starts and that meet in ``folder``; gloo
    uses ``interface``, or the one that GLOO_SOCKET_IFNAME names, or loopback.

    Raises:
        UserError: the latter, or a loopback interface, does not exist.
    """
    if not interface:
        require_interfaces()
        interface = os.environ.get(INTERFACES) or loopback_interface()
    ours = {STORE: str(folder / "ranks"), LAUNCHER_PID: str(os.getpid())}
    return {**ours, INTERFACES: interface}


def rank_environment(rank: int, world_size: int, folder: Path) -> dict[str, str]:
    """Environment of a rank of one host, and the ``folder`` where it meets the others:
    to be added to ``os.environ``. The rank ends when the calling process does.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        **run_environment(folder),
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

    def pids() -> dict[int, int]:
        return {rank: process.pid for rank, process in enumerate(processes)}

    with private_folder() as folder:
        with writing(folder / PAYLOAD):
            (folder / PAYLOAD).write_bytes(payload)
        watch = HangMonitor(folder, pids, timeout_s=timeout_s)
        try:
            for rank in range(world_size):
                environment = rank_environment(rank, world_size, folder)
                environment["OMP_NUM_THREADS"] = str(threads_per_process)
                processes.append(_start(environment))
            with watch.in_background():
                codes = {r: process.wait() for r, process in enumerate(processes)}
        finally:
            for process in processes:
                end(process.pid)
                process.wait()
        if cause := watch.cause(codes):
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
    which calls this. Raises the first failing rank's UserError, or RankError that says
    which rank ended how, or hangs where; the same on all hosts.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _silence("torch.distributed")
    attempt = gathering.begin_attempt() if gathering else "attempt-1"
    here = gathering.hosts.ranks_here(world_size) if gathering else world_size
    begin = gathering.number * here if gathering else 0
    pids: dict[int, int] = {}
    codes: dict[int, int] = {}

    with private_folder() as folder:
        environment = _environment(folder, gathering)
        environment["OMP_NUM_THREADS"] = str(threads_per_process)

        def known() -> dict[int, int]:
            if len(pids) < here:
                found = ranks_among_children(folder)
                pids.update({begin + rank: pid for rank, pid in found.items()})
            return pids

        options = _options(folder, here, attempt)
        elsewhere = gathering.ended_elsewhere if gathering else None
        watch = HangMonitor(folder, known, elsewhere)
        try:
            with watch.in_background(), _same_handlers(), _set(environment):
                run.run(run.parse_args([*options, "-m", module, *arguments]))
        except SignalException as error:  # torchrun has ended the ranks
            raise Stopped(error.sigval) from error
        except ChildFailedError as error:
            for rank, failure in error.failures.items():
                pids[begin + rank] = failure.pid
                codes[begin + rank] = failure.exitcode
        finally:
            for pid in pids.values():
                end(pid)
        cause = watch.cause(codes)
        # what ended well here may not have done so elsewhere
        if cause := gathering.agree_on(cause) if gathering else cause:
            raise cause
        print(native_words(folder, pids), end="", file=sys.stderr)


def _options(folder: Path, num_ranks: int, attempt: str) -> list[str]:
    return [
        *rendezvous_options(attempt),
        f"--nproc-per-node={num_ranks}",
        f"--log-dir={folder}",
        f"--signals-to-handle={SIGNALS}",
        f"--shutdown-timeout={SHUTDOWN_S}",
    ]


def _environment(folder: Path, gathering: Gathering | None) -> dict[str, str]:
    if gathering is None:
        return run_environment(folder) | NO_TCP_STORE
    hosts, name = gathering.hosts, gathering.hosts.interface.name
    return {
        **run_environment(folder, name),
        **NO_TCP_STORE,
        MEET_AT: f"{hosts.port} {hosts.address}",
        HOSTS: f"{gathering.number} {hosts.count}",
        # not every interface whose name begins so
        "NCCL_SOCKET_IFNAME": f"={name}",
    }


@contextmanager
def _same_handlers() -> Iterator[None]:
    # torchrun leaves its own, which raise what only it understands
    numbers = [getattr(signal, name) for name in SIGNALS.split(",")]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _silence(package: str) -> None:
    # what matters in its log lines comes back as an exception
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _set(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
