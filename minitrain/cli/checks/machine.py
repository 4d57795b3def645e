"""Checks of this machine: is it fit for data-parallel training?"""

import os
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
from minitrain.comm.store import interfaces
from minitrain.core.errors import UserError
from minitrain.core.progress import progress
from minitrain.core.provenance import usable_cores
from minitrain.harness.launcher import launch

WORLD_SIZES = (2, 3, 4)
GROUP_TIMEOUT_S = 10


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
    names = ", ".join(backends) or "none"
    detail = f"{torch.__version__}, backends: {names}, GPUs: {gpus}"
    return Check("torch", "fine" if "gloo" in backends else "wrong", detail)


def check_threads() -> Check:
    """Threads of one process, and of ranks, against the cores that it may use."""
    cores = usable_cores()
    threads, asked = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    detail = f"{threads} in torch, OMP_NUM_THREADS={asked or 'unset'}, {cores} cores"
    detail += f"; W ranks take W times {threads}"
    if asked is None:
        detail += ", under torchrun, which sets 1, W"
    return Check("threads", "trouble" if threads > cores else "fine", detail)


def check_interface() -> Check:
    """gloo listens on GLOO_SOCKET_IFNAME, or else on loopback."""
    try:
        return Check("network", "fine", f"ranks of one host talk over {interfaces()}")
    except UserError as error:
        return Check("network", "wrong", str(error))


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
    check_dvc_cache,
]
