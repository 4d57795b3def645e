"""Slowing of one rank, by a delay or a CPU quota, without changing its bits.

Steps are timed as in the training stage, to test the detection.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm.groups import distributed
from minitrain.core.errors import UserError
from minitrain.harness.launcher import launch
from minitrain.train.clock import Row
from minitrain.train.config import RunConfig
from minitrain.train.observer import watches_parts
from minitrain.train.run import Inject, run_rank
from minitrain.train.worker import Worker

CGROUPS = Path("/sys/fs/cgroup")
# short, so that a step of a few milliseconds is slowed evenly
PERIOD_US = 10_000


@dataclass(frozen=True)
class Delay:
    """Delay ``rank`` by ``ms`` before each forward pass, asleep, or busy on its core
    (``is_busy``). Injected as :data:`minitrain.train.run.Inject`.
    """

    rank: int
    ms: float
    is_busy: bool = False

    def __call__(self, worker: Worker) -> None:
        """Modify ``worker`` if it is on the slowed rank."""
        if worker.rank != self.rank:
            return
        right = worker.batches.loss

        def loss(model: nn.Module, inputs: Any) -> Tensor:
            self._wait()
            return right(model, inputs)

        # the loss function; mypy sees a method
        batches: Any = worker.batches
        batches.loss = loss

    def _wait(self) -> None:
        until = time.perf_counter() + self.ms / 1e3
        if not self.is_busy:
            time.sleep(self.ms / 1e3)
        while time.perf_counter() < until:
            pass


@dataclass(frozen=True)
class Join:
    """Move ``rank`` with all its threads to the control group of file ``procs``."""

    rank: int
    procs: Path

    def __call__(self, worker: Worker) -> None:
        """Move the process of ``worker`` if it is on that rank."""
        if worker.rank == self.rank:
            # 0: the writing process
            self.procs.write_text("0")


def timed_run(
    config: RunConfig,
    world_size: int,
    inject: Inject | None = None,
    timeout_s: float = 600,
) -> list[Row]:
    """Train in ``world_size`` new processes over gloo, each modified by ``inject``;
    returns a row per step and ``rank``, as in timings.jsonl. Raises RankError if a
    process fails or takes more than ``timeout_s`` seconds.
    """
    ranks = launch(_be_a_rank, world_size, config, inject, timeout_s=timeout_s)
    return [{**row, "rank": r} for r, rows in enumerate(ranks) for row in rows]


def _be_a_rank(config: RunConfig, inject: Inject | None) -> list[Row]:
    torch.set_num_threads(1)
    with distributed():
        return run_rank(config, observer=watches_parts, inject=inject).timings


@contextmanager
def cpu_quota(share: float, cgroups: Path = CGROUPS) -> Iterator[Path]:
    """Create a control group (Linux) limited to ``share`` of a core in each 10 ms;
    yields the file that takes pids.

    It is removed afterwards, when its processes must have exited. Raises UserError if
    it cannot be created: this requires root and a kernel with CPU quotas.
    """
    quota = str(int(share * PERIOD_US))
    # cgroup v1 has a folder per resource, v2 one for all
    parent = cgroups / "cpu"
    limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}
    if not parent.is_dir():
        parent, limits = cgroups, {"cpu.max": f"{quota} {PERIOD_US}"}
    try:
        group = Path(tempfile.mkdtemp(prefix="minitrain-", dir=parent))
    except OSError as error:
        raise UserError(f"{parent}: no control group can be made: {error}") from None
    try:
        for name, value in limits.items():
            _set_limit(group / name, value)
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def why_no_quota() -> str:
    """Return why :func:`cpu_quota` is not available; empty if it is."""
    try:
        with cpu_quota(0.5):
            return ""
    except UserError as error:
        return str(error)


def _set_limit(file: Path, value: str) -> None:
    # the kernel creates these files; a missing one means a missing controller
    try:
        with open(file, "r+") as limit:
            limit.write(value)
    except OSError as error:
        raise UserError(f"{file}: no quota can be set: {error}") from None
