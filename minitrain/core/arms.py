"""Arms of the baseline stage: configurations that it times. Does not import torch."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

ONE_PROCESS = "one_process"
ALL_CORES = "one_process_all_cores"


class Kind(StrEnum):
    """How the processes of one timed configuration (arm) communicate."""

    ONE_PROCESS = "one process"
    ALL_CORES = "one process on all cores"
    SYNC = "synchronized"
    NO_SYNC = "no communication"


@dataclass(frozen=True)
class BaselineArm:
    """Timed configuration (arm) of the baseline stage.

    ``repeat_of``: name of the arm that this one repeats to measure noise (A/A test), or
    empty. ``timed``: run with the timestamps and hooks that the training stage uses.
    """

    name: str
    kind: Kind
    processes: int
    repeat_of: str = ""
    timed: bool = False

    @property
    def alone(self) -> bool:
        """True if the arm is a single process without a process group."""
        return self.kind in (Kind.ONE_PROCESS, Kind.ALL_CORES)

    @property
    def is_result(self) -> bool:
        """False if the arm only measures the noise floor or the overhead of timing."""
        return not self.repeat_of and not self.timed


def baseline_arms(world_sizes: Iterable[int]) -> list[BaselineArm]:
    """Return the arms: one process, with the configured number of threads and with all
    cores; gloo at each of ``world_sizes``, with and without communication; duplicates;
    one timed as in training.
    """
    sizes = sorted({*world_sizes} - {1}) or [1]
    ours = [
        BaselineArm(f"gloo-{size}{suffix}", kind, size)
        for size in sizes
        for suffix, kind in (("", Kind.SYNC), ("-no-sync", Kind.NO_SYNC))
        if kind is Kind.SYNC or size > 1
    ]
    one = BaselineArm(ONE_PROCESS, Kind.ONE_PROCESS, 1)
    all_cores = BaselineArm(ALL_CORES, Kind.ALL_CORES, 1)
    repeated = [*(arm for arm in ours if arm.processes == sizes[-1]), one]
    repeats = [replace(a, name=f"{a.name}-again", repeat_of=a.name) for a in repeated]
    timed = replace(repeated[0], name=f"{repeated[0].name}-timed", timed=True)
    return [one, all_cores, *ours, *repeats, timed]
