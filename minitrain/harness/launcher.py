"""Starting ranks from plain Python, scripts and notebooks; torchrun has its own module.

Whichever way, ranks meet in a file of a private folder, a failure comes back as one
exception that names the rank, and nobody is left behind: a rank ends when the process
that started it is gone, even after kill -9.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Self

import cloudpickle
import torch

from minitrain.core.errors import UserError
from minitrain.harness.environment import one_host
from minitrain.harness.failures import Lost, ended, raised, root_cause
from minitrain.harness.hang_monitor import POLL_S, Watch
from minitrain.harness.processes import end, end_group
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

RANK_PROGRAM = "minitrain.harness.launched_rank"
# for others to say that they failed, after the first has
MOMENT_S = 2.0


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
    with private_folder() as folder, _Ranks(folder) as ranks:
        for rank in range(world_size):
            environment = rank_environment(rank, world_size, folder)
            environment["OMP_NUM_THREADS"] = str(threads_per_process)
            ranks.start(payload, environment)
        return ranks.collect(timeout_s)


class _Ranks:
    """Child processes and the pipe from each; leaving the context ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pipes: list[Connection[Any, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.returncode is None:
                end(process.pid)
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.wait()
            end_group(process.pid)
            pipe.close()

    def start(self, payload: bytes, environment: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", RANK_PROGRAM, str(theirs.fileno())],
            env={**os.environ, **environment, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # what it starts ends with it
            start_new_session=True,
        )
        self.processes.append(process)
        self.pipes.append(ours)
        theirs.close()
        ours.send_bytes(payload)

    def collect(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results: dict[int, Any] = {}
        failures: list[Lost | UserError] = []
        silent = dict(enumerate(self.pipes))
        watch = Watch(self._folder, lambda: {r: self.processes[r].pid for r in silent})
        while silent and time.monotonic() < deadline:
            ready = wait(list(silent.values()), POLL_S)
            for rank in [rank for rank, pipe in silent.items() if pipe in ready]:
                del silent[rank]
                ok, value = self._receive(rank)
                if ok:
                    results[rank] = value
                    continue
                failures.append(value)
                # the others fail of this one's absence: a moment to say so
                deadline = min(deadline, time.monotonic() + MOMENT_S)
            hung = watch.look() if silent and not ready else None
            if hung is not None and not failures:
                raise hung
        if failures:
            raise root_cause(failures)
        if silent:
            raise watch.blame(timeout_s)
        print(native_words(self._folder, results), end="", file=sys.stderr)
        return [results[rank] for rank in range(len(self.pipes))]

    def _receive(self, rank: int) -> tuple[bool, Any]:
        """Whether the rank went well, and its result, or what became of it."""
        pid = self.processes[rank].pid
        try:
            ok, value = cloudpickle.loads(self.pipes[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            return False, ended(self._folder, rank, pid, self.processes[rank].wait())
        if not ok and not isinstance(value, UserError):
            return False, raised(self._folder, rank, pid, *value)
        return ok, value
