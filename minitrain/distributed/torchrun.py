"""Ranks under torchrun: a module starts itself W times, and a failure is one line.

torchrun runs inside the launching process, so what it knows of a failed rank comes
back as an exception instead of a page of text.
"""

import importlib.util
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitrain.core.ended import Stopped
from minitrain.core.errors import EXIT_USER, UserError
from minitrain.distributed.launcher import launch
from minitrain.distributed.lost import Lost, early, ended, raised, root_cause
from minitrain.distributed.meeting import (
    LOOPBACK,
    STORE,
    names_of_a_rank,
    one_host,
    private_folder,
)
from minitrain.distributed.parent import end_with_parent
from minitrain.distributed.restarts import with_restarts
from minitrain.distributed.seat import leave, take_a_seat
from minitrain.distributed.stack import native_words
from minitrain.distributed.watch import Watch, end_group, ranks_among_children

# torchrun's way to share its rendezvous with the ranks is a TCP store on all interfaces
NO_TCP_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
# where torchrun reads what became of a rank
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# Not SIGINT, which torchrun would pass on: each rank would print a traceback and be
# waited for. So Ctrl-C is an exception here, and the ranks get SIGTERM.
SIGNALS = "SIGTERM,SIGHUP,SIGQUIT"
# from SIGTERM to SIGKILL for the ranks that are left
SHUTDOWN_S = 2


def torchrun(
    module: str, arguments: list[str], world_size: int, *, threads_per_process: int
) -> None:
    """Run ``python -m module arguments`` as ``world_size`` ranks under torchrun.

    All of them on this host, where they meet in a file: nothing listens but gloo, on
    loopback, and with nccl what NCCL opens. Raises the first failing rank's UserError,
    or RankError that says which rank ended how, or hangs where.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _silence("torch.distributed")
    with private_folder() as folder, _environment(threads_per_process, folder):
        ranks = [f"--nproc-per-node={world_size}", f"--log-dir={folder}"]
        ranks += [f"--signals-to-handle={SIGNALS}", f"--shutdown-timeout={SHUTDOWN_S}"]
        program = ["--module", module, *arguments]
        pids: dict[int, int] = {}
        watch = Watch(folder, lambda: _known(pids, folder, world_size))
        try:
            with watch.in_background(), _same_handlers():
                run.run(run.parse_args([*_rendezvous(folder), *ranks, *program]))
        except SignalException as error:
            # torchrun has ended the ranks
            raise Stopped(error.sigval) from error
        except ChildFailedError as error:
            failed = error.failures.items()
            found = [_failure(folder, rank, failure) for rank, failure in failed]
            well = {r: pid for r, pid in pids.items() if r not in error.failures}
            causes = [*found, *early(folder, well)]
            raise watch.verdict or root_cause(causes, watch.first) from None
        finally:
            for pid in pids.values():
                end_group(pid)
        if unfinished := early(folder, pids):
            raise root_cause(unfinished)
        print(native_words(folder, range(world_size)), end="", file=sys.stderr)


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Torchrun leaves its own, which raise what only it understands."""
    numbers = [getattr(signal, name) for name in SIGNALS.split(",")]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _known(pids: dict[int, int], folder: Path, world_size: int) -> dict[int, int]:
    """``pids``, with the ranks that have started since."""
    if len(pids) < world_size:
        pids |= ranks_among_children(folder)
    return pids


def _silence(package: str) -> None:
    """No log lines of ``package``: what matters in them comes back as an exception."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _environment(threads: int, folder: Path) -> Iterator[None]:
    changes = {"OMP_NUM_THREADS": str(threads), NO_TCP_STORE: "1", **one_host(folder)}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _rendezvous(folder: Path) -> list[str]:
    return [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={folder / 'agent'}",
        "--rdzv-conf=store_type=file",
        f"--local-addr={LOOPBACK}",
    ]


def _failure(folder: Path, rank: int, failure: Any) -> Lost | UserError:
    message = failure.message
    if not isinstance(message, dict):
        return ended(folder, rank, failure.pid, failure.exitcode)
    line = str(message["message"])
    marker = f"{UserError.__name__}: "
    if line.startswith(marker):
        return UserError(line.removeprefix(marker))
    traceback = str(message.get("extraInfo", {}).get("py_callstack", ""))
    return raised(folder, rank, failure.pid, line, traceback)


def run_as_ranks(
    module: str,
    body: Callable[[str], None],
    world_size: int,
    *,
    threads_per_process: int,
    max_restarts: int = 0,
) -> None:
    """Run ``body`` as ``world_size`` ranks; it is given the name of the launcher.

    In a rank that torchrun started, this runs ``body``. Anywhere else it starts
    ``python -m module`` with the arguments of this process under torchrun, or, on a
    torch build without torchrun, ``body`` through :func:`launch`; all ranks again where
    one was lost, up to ``max_restarts`` times (:mod:`minitrain.distributed.restarts`).
    Raises UserError for an environment that some other program left behind.
    """
    if under_torchrun():
        _require_a_rank_of(world_size)
        with _torchrun_rank():
            body("torchrun")
        return
    threads = {"threads_per_process": threads_per_process}

    def start() -> None:
        if importlib.util.find_spec("torch.distributed.run") is not None:
            torchrun(module, sys.argv[1:], world_size, **threads)
        else:
            # ranks that hang are found; nobody knows how long training takes
            launch(body, world_size, "launch", **threads, timeout_s=math.inf)

    with_restarts(start, max_restarts)


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun started: TORCHELASTIC_RUN_ID is in
    its environment.
    """
    return STARTED_BY_TORCHRUN in os.environ


def _require_a_rank_of(world_size: int) -> None:
    known = {"WORLD_SIZE": [str(world_size)], "RANK": [*map(str, range(world_size))]}
    for name in names_of_a_rank():
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
    ours = _our_folder() is not None
    end_with_parent()
    place = take_a_seat()
    if ours:
        # whoever joins by these would serve a TCP store to everybody
        del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        yield
    except (Exception, SystemExit) as error:
        # first: this rank may be ended as soon as torchrun sees the cause
        wait_s = leave(place, error)
        try:
            _record(error)
        except OSError as why:
            # as where a disk is full: nobody else would say it
            print(f"{_line_of(error)} (torchrun was not told: {why})", file=sys.stderr)
        if not ours:
            raise
        time.sleep(wait_s)
        # no clean-up: a process group that lost a rank may wait in it
        os._exit(EXIT_USER)
    place.enter("end")


def _line_of(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _record(error: BaseException) -> None:
    """Tell torchrun of ``error``, by all of the file or none: torchrun ends a rank that
    still writes, and does not survive half of one.
    """
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    handler, whole = get_error_handler(), os.environ.get(ERROR_FILE)
    if whole is None:
        handler.record_exception(error)
        return
    begun = f"{whole}.tmp"
    os.environ[ERROR_FILE] = begun
    try:
        handler.record_exception(error)
        os.replace(begun, whole)
    finally:
        os.environ[ERROR_FILE] = whole


def _our_folder() -> Path | None:
    """The folder of the run that :func:`torchrun` of this module started this rank in;
    None under any other torchrun, which has logs elsewhere.
    """
    folder = Path(os.environ.get(STORE, "")).parent
    logs = Path(os.environ.get(ERROR_FILE, ""))
    return folder if STORE in os.environ and folder in logs.parents else None
