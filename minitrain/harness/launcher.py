"""Starting ranks from plain Python, scripts and notebooks; torchrun has its own module.

Both launchers share the rest: ranks meet in a file of a private folder, a failure comes
back as one exception that names the rank, and no process is left behind: a rank ends
when the process that started it is gone, even after kill -9.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from minitrain.comm.store import (
    INTERFACES,
    STORE,
    loopback_interface,
    require_interfaces,
)
from minitrain.core.errors import UserError
from minitrain.core.signals import LAUNCHER_PID
from minitrain.harness.hang_monitor import Watch
from minitrain.harness.processes import end
from minitrain.harness.rank import PAYLOAD
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

RANK_PROGRAM = "minitrain.harness.rank"


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
        (folder / PAYLOAD).write_bytes(payload)
        watch = Watch(folder, pids, timeout_s=timeout_s)
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
