"""Ranks under torchrun: a module is started W times, and a failure is one line.

torchrun runs inside the launching process, so that process is the parent of the ranks,
and no page of text is printed. On several hosts each torchrun knows of its own ranks
alone; the hosts meet in :mod:`minitrain.harness.host_rendezvous`.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from minitrain.comm.store import HOSTS, MEET_AT
from minitrain.core.signals import Stopped
from minitrain.harness.hang_monitor import Watch
from minitrain.harness.host_rendezvous import Gathering
from minitrain.harness.launcher import run_environment
from minitrain.harness.processes import end, ranks_among_children
from minitrain.harness.run_dir import private_folder
from minitrain.harness.stack_dump import native_words

# torchrun's way to share its rendezvous with the ranks is a TCP store on all interfaces
NO_TCP_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
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

        options = [
            f"--nproc-per-node={here}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={folder}/torchrun",
            "--rdzv-conf=store_type=file",
            f"--rdzv-id={attempt}",
            "--local-addr=127.0.0.1",
            f"--log-dir={folder}",
            f"--signals-to-handle={SIGNALS}",
            f"--shutdown-timeout={SHUTDOWN_S}",
        ]
        elsewhere = gathering.ended_elsewhere if gathering else None
        watch = Watch(folder, known, elsewhere)
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
