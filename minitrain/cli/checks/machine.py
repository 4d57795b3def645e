"""Is this machine fit for data-parallel training, and does its torch add correctly?"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from minitrain.cli.checks.collectives import Probe, probe_all, worst
from minitrain.cli.private_cache import configured, is_private
from minitrain.comm.groups import distributed
from minitrain.comm.store import (
    LOOPBACK,
    loopback_interface,
    require_free_port,
)
from minitrain.core.errors import UserError
from minitrain.core.progress import progress
from minitrain.core.provenance import usable_cores
from minitrain.harness.launcher import launch

WORLD_SIZES = (2, 3, 4)
GROUP_TIMEOUT_S = 10
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
ENOUGH_PORTS = 1000


@dataclass(frozen=True)
class Check:
    """A fact about the machine; ``trouble`` is worth a look, ``wrong`` must change."""

    name: str
    verdict: Literal["fine", "trouble", "wrong"]
    detail: str


@dataclass(frozen=True)
class Examination:
    """All that was looked at."""

    checks: list[Check]
    probes: list[Probe]

    @property
    def ok(self) -> bool:
        """Something was probed, and nothing is wrong."""
        verdicts = [check.verdict for check in self.checks]
        answers = [probe.verdict for probe in self.probes]
        return bool(answers) and "wrong" not in [*verdicts, *answers]


def examine(
    inject: Callable[[], None] | None = None, timeout_s: float = 60
) -> Examination:
    """Look at the machine, then try every collective at 2, 3 and 4 ranks over gloo.

    ``inject`` runs in every rank beforehand: a test spoils a collective with it.
    """
    checks = [check() for check in CHECKS]
    try:
        by_rank = launch(_probe, max(WORLD_SIZES), inject, timeout_s=timeout_s)
    except Exception as error:
        failed = Check("collectives", "wrong", f"the ranks failed: {error}")
        return Examination([*checks, failed], [])
    by_probe: dict[tuple[str, str, str, int], list[Probe]] = {}
    for probe in (probe for rank in by_rank for probe in rank):
        key = (probe.collective, probe.op, probe.dtype, probe.world_size)
        by_probe.setdefault(key, []).append(probe)
    return Examination(checks, [worst(probes) for probes in by_probe.values()])


def _probe(inject: Callable[[], None] | None) -> list[Probe]:
    import warnings

    # names that torch is about to change are still what people call
    warnings.simplefilter("ignore", FutureWarning)
    if inject is not None:
        inject()
    found: list[Probe] = []
    limit = timedelta(seconds=GROUP_TIMEOUT_S)
    with distributed() as (rank, _):
        for size in progress(WORLD_SIZES, "numbers of ranks", show=rank == 0):
            group = dist.new_group(list(range(size)), timeout=limit)
            if rank < size:
                found += probe_all(group)
    return found


def check_torch() -> Check:
    """Which torch this is, and what it can communicate with."""
    backends = [b for b in ("gloo", "nccl") if dist.is_backend_available(b)]
    gpus = torch.cuda.device_count()
    detail = (
        f"{torch.__version__}, backends: {', '.join(backends) or 'none'}, GPUs: {gpus}"
    )
    return Check("torch", "fine" if "gloo" in backends else "wrong", detail)


def check_threads() -> Check:
    """Threads against the cores that this process may use."""
    cores = usable_cores()
    threads, asked = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    detail = f"{threads} in torch, OMP_NUM_THREADS={asked or 'unset'}, {cores} cores"
    return Check("threads", "trouble" if threads > cores else "fine", detail)


def check_interface() -> Check:
    """gloo listens where GLOO_SOCKET_IFNAME says, on one host else on loopback."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    present = [name for _, name in socket.if_nameindex()]
    if named is not None:
        missing = [name for name in named.split(",") if name not in present]
        detail = f"GLOO_SOCKET_IFNAME={named}; interfaces here: {', '.join(present)}"
        return Check("network", "wrong" if missing else "fine", detail)
    try:
        found = loopback_interface()
    except UserError as error:
        return Check("network", "wrong", str(error))
    return Check("network", "fine", f"ranks of one host talk over {found}")


def check_ports() -> Check:
    """Free ports to choose from, and MASTER_PORT where it is set."""
    first, last = (
        map(int, PORT_RANGE.read_text().split()) if PORT_RANGE.exists() else (0, 0)
    )
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
    asked = os.environ.get("MASTER_PORT")
    if asked is not None:
        try:
            require_free_port(asked)
        except UserError as error:
            detail = f"{error} (only a torchrun of your own uses it)"
            return Check("ports", "trouble", detail)
    few = last > 0 and last - first < ENOUGH_PORTS
    detail = f"{first} to {last}, MASTER_PORT={asked or 'unset'}"
    return Check("ports", "trouble" if few else "fine", detail)


def check_dvc_cache(project: Path | None = None) -> Check:
    """DVC runs code that other users can put into a site cache that is open to them."""
    here = project or Path.cwd()
    if not (here / ".dvc").is_dir():
        return Check("DVC cache", "fine", "no project of DVC in this folder")
    cache = configured(here)
    if is_private(cache):
        return Check("DVC cache", "fine", f"{cache} is closed to other users")
    detail = f"{cache} is open to other users, who can run code as you; run make"
    return Check("DVC cache", "trouble", detail)


CHECKS: list[Callable[[], Any]] = [
    check_torch,
    check_threads,
    check_interface,
    check_ports,
    check_dvc_cache,
]
