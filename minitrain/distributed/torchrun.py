"""Ranks under torchrun: a module starts itself W times, and a failure is one line.

torchrun runs inside the launching process, so what it knows of a failed rank comes
back as an exception instead of a page of text.
"""

import importlib.util
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitrain.core.errors import EXIT_USER, RankError, UserError
from minitrain.distributed.groups import ENVIRONMENT, port_in_use
from minitrain.distributed.launcher import (
    LAUNCHER_PID,
    LOOPBACK,
    end_with_parent,
    launch,
    root_cause,
)

LOGS_PREFIX = "minitrain-torchrun-"
STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
# Not SIGINT, which torchrun would pass on: each rank would print a traceback and be
# waited for. So Ctrl-C is an exception here, and the ranks get SIGTERM.
SIGNALS = "SIGTERM,SIGHUP,SIGQUIT"


def torchrun(
    module: str, arguments: list[str], world_size: int, *, threads_per_process: int
) -> None:
    """Run ``python -m module arguments`` as ``world_size`` ranks under torchrun.

    The environment's MASTER_PORT is used where it is set, else a free one. Raises the
    first failing rank's UserError, or RankError with its traceback.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _silence("torch.distributed")
    with (
        _environment(threads_per_process),
        tempfile.TemporaryDirectory(prefix=LOGS_PREFIX) as logs,
    ):
        ranks = [f"--nproc-per-node={world_size}", f"--log-dir={logs}"]
        ranks.append(f"--signals-to-handle={SIGNALS}")
        program = ["--module", module, *arguments]
        try:
            run.run(run.parse_args([*_rendezvous(), *ranks, *program]))
        except SignalException as error:
            # torchrun has ended the ranks
            raise KeyboardInterrupt from error
        except ChildFailedError as error:
            failures = error.failures.items()
            raise root_cause([_failure(r, f) for r, f in failures]) from None


def _silence(package: str) -> None:
    """No log lines of ``package``: what matters in them comes back as an exception."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({"OMP_NUM_THREADS": str(threads), LAUNCHER_PID: str(os.getpid())})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _rendezvous() -> list[str]:
    port = os.environ.get("MASTER_PORT")
    if port is None:
        return ["--standalone"]
    require_free_port(port)
    return [f"--master-addr={LOOPBACK}", f"--master-port={port}"]


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


def _failure(rank: int, failure: Any) -> Exception:
    message = failure.message
    if not isinstance(message, dict):
        return RankError(f"rank {rank}: {message}")
    line = str(message["message"])
    marker = f"{UserError.__name__}: "
    if line.startswith(marker):
        return UserError(line.removeprefix(marker))
    error = RankError(f"rank {rank}: {line}")
    error.add_note(str(message.get("extraInfo", {}).get("py_callstack", "")))
    return error


def run_as_ranks(
    module: str,
    body: Callable[[str], None],
    world_size: int,
    *,
    threads_per_process: int,
) -> None:
    """Run ``body`` as ``world_size`` ranks; it is given the name of the launcher.

    In a rank that torchrun started, this runs ``body``. Anywhere else it starts
    ``python -m module`` with the arguments of this process under torchrun, or, on a
    torch build without torchrun, ``body`` through :func:`launch`. Raises UserError for
    an environment that some other program left behind.
    """
    if under_torchrun():
        _require_a_rank_of(world_size)
        with _torchrun_rank():
            body("torchrun")
    elif importlib.util.find_spec("torch.distributed.run") is not None:
        torchrun(
            module, sys.argv[1:], world_size, threads_per_process=threads_per_process
        )
    else:
        launch(body, world_size, "launch", threads_per_process=threads_per_process)


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun started: TORCHELASTIC_RUN_ID is in
    its environment.
    """
    return STARTED_BY_TORCHRUN in os.environ


def _require_a_rank_of(world_size: int) -> None:
    known = {"WORLD_SIZE": [str(world_size)], "RANK": [*map(str, range(world_size))]}
    for name in ENVIRONMENT:
        value = os.environ.get(name)
        if value is None or value not in known.get(name, [value]):
            raise UserError(
                f"environment: {name} = {value or 'nothing'} does not fit a run of "
                f"{world_size}; where torchrun did not start this process, unset "
                f"{STARTED_BY_TORCHRUN}"
            )


@contextmanager
def _torchrun_rank() -> Iterator[None]:
    """Around the body of a rank under torchrun: failures go to who launched it.

    An exception is left where torchrun finds it and ends the process; the rank prints
    nothing when :func:`torchrun` of this module, which will say it, launched it.
    """
    logs = _logs_of_torchrun()
    end_with_parent(remove=logs)
    try:
        yield
    except Exception as error:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
        if logs is None:
            raise
        # no clean-up: a process group that lost a rank may wait in it
        os._exit(EXIT_USER)


def _logs_of_torchrun() -> Path | None:
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    return next((p for p in file.parents if p.name.startswith(LOGS_PREFIX)), None)
