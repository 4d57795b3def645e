"""Arms of the baseline stage: the configurations timed side by side. Without torch."""

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

    ``twin_of`` is the name of the identical arm that it duplicates (A/A test), or
    empty. ``timed``: run with the timestamps and hooks that the training stage uses.
    """

    name: str
    kind: Kind
    processes: int
    twin_of: str = ""
    timed: bool = False

    @property
    def alone(self) -> bool:
        """True for a single process without a process group."""
        return self.kind in (Kind.ONE_PROCESS, Kind.ALL_CORES)

    @property
    def is_result(self) -> bool:
        """False for duplicates that measure the noise floor or the timing overhead."""
        return not self.twin_of and not self.timed


def baseline_arms(world_sizes: Iterable[int]) -> list[BaselineArm]:
    """Return arms for gloo ``world_sizes``, for one process, and A/A duplicates."""
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
    twins = [replace(a, name=f"{a.name}-again", twin_of=a.name) for a in repeated]
    timed = replace(repeated[0], name=f"{repeated[0].name}-timed", timed=True)
    return [one, all_cores, *ours, *twins, timed]
