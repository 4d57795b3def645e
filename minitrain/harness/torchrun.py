"""Ranks under torchrun: a module is started W times, and a failure is one line.

torchrun runs inside the launching process, so what it knows of a failed rank comes
back as an exception instead of a page of text.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minitrain.comm.store import STORE
from minitrain.core.errors import EXIT_USER, RankError, UserError
from minitrain.core.printable import note
from minitrain.core.signals import Stopped, end_with_launcher
from minitrain.harness.environment import one_host, several_hosts
from minitrain.harness.failures import (
    Lost,
    began_it,
    early,
    ended,
    raised,
    root_cause,
)
from minitrain.harness.hang_monitor import Watch
from minitrain.harness.host_failures import not_together
from minitrain.harness.host_rendezvous import Gathering
from minitrain.harness.processes import end_group, ranks_among_children
from minitrain.harness.rank_setup import leave, take_a_seat
from minitrain.harness.rendezvous import alone, rendezvous_of
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

# torchrun's way to share its rendezvous with the ranks is a TCP store on all interfaces
NO_TCP_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# where torchrun reads what became of a rank
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# Not SIGINT, which torchrun would pass on: each rank would print a traceback and be
# waited for. So Ctrl-C is an exception here, and the ranks get SIGTERM.
SIGNALS = "SIGTERM,SIGHUP,SIGQUIT"
# from SIGTERM to SIGKILL for the ranks that are left
SHUTDOWN_S = 2


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
    with (
        private_folder() as folder,
        _environment(threads_per_process, folder, gathering),
    ):
        here = gathering.hosts.ranks_here(world_size) if gathering else world_size
        ranks = [f"--nproc-per-node={here}", f"--log-dir={folder}"]
        ranks += [f"--signals-to-handle={SIGNALS}", f"--shutdown-timeout={SHUTDOWN_S}"]
        meet = rendezvous_of(gathering.begin_attempt() if gathering else alone())
        pids: dict[int, int] = {}
        elsewhere = (gathering.ended_elsewhere,) if gathering else ()
        watch = Watch(folder, lambda: _known(pids, folder, here), *elsewhere)
        cause: Exception | None
        try:
            with watch.in_background(), _same_handlers():
                run.run(run.parse_args([*meet, *ranks, "-m", module, *arguments]))
        except SignalException as error:  # torchrun has ended the ranks
            raise Stopped(error.sigval) from error
        except dist.DistError:
            cause = not_together()
        except ChildFailedError as error:
            cause = watch.verdict or cause_of(folder, error.failures, pids, watch)
        else:
            cause = root_cause(left) if (left := early(folder, pids)) else None
        finally:
            for pid in pids.values():
                end_group(pid)
        # what ended well here may not have done so elsewhere
        if cause := gathering.agree_on(cause) if gathering else cause:
            raise cause
        print(native_words(folder, pids), end="", file=sys.stderr)


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
def _environment(
    threads: int, folder: Path, gathering: Gathering | None
) -> Iterator[None]:
    changes = {"OMP_NUM_THREADS": str(threads), NO_TCP_STORE: "1"}
    if gathering is None:
        changes |= one_host(folder)
    else:
        changes |= several_hosts(folder, gathering.hosts)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def cause_of(
    folder: Path, failures: dict[int, Any], pids: dict[int, int], watch: Watch
) -> Exception:
    """Of the ``failures`` that torchrun tells, and what it does not, the cause."""
    found = [_failure(folder, rank, failure) for rank, failure in failures.items()]
    well = {rank: pid for rank, pid in pids.items() if rank not in failures}
    found += early(folder, well)
    cause = root_cause(found, watch.first)
    own = any(began_it(failure, watch.first) for failure in found)
    if watch.followed and not own and isinstance(cause, RankError):
        # they were killed here for what was told there
        cause.of_another = True
    return cause


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


@contextmanager
def torchrun_rank() -> Iterator[None]:
    """Around the body of a rank under torchrun: failures go to who launched it.

    An exception is left where torchrun finds it and ends the process; the rank prints
    nothing when :func:`torchrun` of this module, which will say it, launched it.
    """
    ours = _our_folder() is not None
    end_with_launcher()
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
            note(f"{_line_of(error)} (torchrun was not told: {why})")
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
