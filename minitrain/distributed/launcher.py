"""Starting ranks from plain Python, scripts and notebooks; torchrun has its own module.

Whichever way, ranks meet in a file of a private folder, a failure comes back as one
exception that names the rank, and nobody is left behind: a rank ends itself when the
process that started it is gone, even after kill -9.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Self

import cloudpickle
import torch

from minitrain.core.errors import EXIT_USER, RankError, UserError
from minitrain.distributed.meeting import LAUNCHER_PID, one_host, private_folder

RANK_PROGRAM = "minitrain.distributed.launched_rank"
PARENT_POLL_S = 0.5
# how gloo says that another rank went away
LOST_PEER = ("closed by peer", "reset by peer", "Broken pipe")


def rank_environment(rank: int, world_size: int, folder: Path) -> dict[str, str]:
    """Who a rank of one host is, and the ``folder`` where it meets the others: to be
    added to ``os.environ``. The rank ends when the calling process does.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        **one_host(folder),
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
    with private_folder() as folder, _Ranks() as ranks:
        for rank in range(world_size):
            environment = rank_environment(rank, world_size, folder)
            environment["OMP_NUM_THREADS"] = str(threads_per_process)
            ranks.start(payload, environment)
        return ranks.collect(timeout_s)


class _Ranks:
    """Child processes and the pipe from each; leaving the context ends them all."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pipes: list[Connection[Any, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.wait()
            pipe.close()

    def start(self, payload: bytes, environment: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", RANK_PROGRAM, str(theirs.fileno())],
            env={**os.environ, **environment, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        self.processes.append(process)
        self.pipes.append(ours)
        theirs.close()
        ours.send_bytes(payload)

    def collect(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results: dict[int, Any] = {}
        failures: list[Exception] = []
        silent = dict(enumerate(self.pipes))
        while silent:
            ready = wait(list(silent.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in [rank for rank, pipe in silent.items() if pipe in ready]:
                del silent[rank]
                try:
                    results[rank] = self._receive(rank)
                except (RankError, UserError) as error:
                    failures.append(error)
                    # the others fail of this one's absence: a moment to say so
                    deadline = min(deadline, time.monotonic() + 2)
        if failures:
            raise root_cause(failures)
        if silent:
            late = ", ".join(map(str, silent))
            raise RankError(f"rank {late}: no answer within {timeout_s:g} s")
        return [results[rank] for rank in range(len(self.pipes))]

    def _receive(self, rank: int) -> Any:
        try:
            ok, value = cloudpickle.loads(self.pipes[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            code = self.processes[rank].wait()
            raise RankError(f"rank {rank}: ended with exit code {code}") from None
        if ok:
            return value
        if isinstance(value, UserError):
            raise value
        error = RankError(f"rank {rank}: {value[0]}")
        error.add_note(value[1])
        raise error


def root_cause(failures: list[Exception]) -> Exception:
    """The failure to report: a user's mistake first, a rank that lost a peer last."""

    def collateral(error: Exception) -> int:
        if isinstance(error, UserError):
            return 0
        return 2 if any(sign in str(error) for sign in LOST_PEER) else 1

    return min(failures, key=collateral)


def end_with_parent(remove: Path | None = None) -> None:
    """End this process soon after its parent has gone, however that came about.

    ``remove`` is a folder that the parent can then no longer remove itself.
    """
    # told by the launcher: while this process started, its parent may have gone already
    parent = int(os.environ.get(LAUNCHER_PID, os.getppid()))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        if remove is not None:
            shutil.rmtree(remove, ignore_errors=True)
        os._exit(EXIT_USER)

    threading.Thread(target=watch, name="end_with_parent", daemon=True).start()
