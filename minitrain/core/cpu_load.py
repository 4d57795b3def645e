"""CPU load from other processes during a measurement.

Shares are None except on Linux; :mod:`minitrain.analysis.busy` evaluates them.
"""

import os
import resource
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from minitrain.core.provenance import usable_cores

PROC_STAT = Path("/proc/stat")
# /proc/stat counts in units of 10 ms, too coarse for a shorter interval
SHORTEST_S = 1.0


@dataclass(frozen=True)
class Usage:
    """Cumulative CPU usage of one process and its cores at time ``at_s``, in seconds.

    ``busy_s`` and ``steal_s`` sum over all cores that the process may run on: CPU time
    of all processes, and time stolen by the hypervisor. ``own_s`` is the CPU time of
    this process in all threads, ``switches`` its involuntary context switches.
    """

    at_s: float
    busy_s: float | None
    steal_s: float | None
    own_s: float
    switches: int

    @classmethod
    def now(cls, *, with_children: bool = False) -> Self:
        """Return the usage so far; ``with_children`` adds exited child processes."""
        busy, steal = _cores_s()
        at, own = time.perf_counter(), time.process_time()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        if with_children:
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            own += ended.ru_utime + ended.ru_stime
            switches += ended.ru_nivcsw
        return cls(at, busy, steal, own, switches)

    def since(self, before: "Usage") -> "Usage":
        """Return the usage since ``before``; ``at_s`` becomes the elapsed time."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        used: list[Any] = [
            None if None in pair else pair[0] - pair[1] for pair in pairs
        ]
        return Usage(*used)


def taken(load: Mapping[str, Any]) -> float:
    """Return the share of CPU time taken by other processes and the hypervisor in
    ``load``, a :func:`load_of`; unknown shares count as 0.
    """
    return sum(load.get(key) or 0.0 for key in ("others_share", "steal_share"))


def load_of(ranks: Iterable[Usage]) -> dict[str, Any]:
    """Return the CPU load of this machine during a measurement, given the usage of each
    rank on it in that time, from :meth:`Usage.since`.

    ``others_share`` (processes that are not ranks) and ``steal_share`` (hypervisor) are
    fractions of the time of all cores; ``load_average`` covers the last minute.
    """
    used = list(ranks)
    seconds, whole = used[0].at_s, used[0].at_s * usable_cores()
    busy, steal = used[0].busy_s, used[0].steal_s
    if seconds < SHORTEST_S:
        busy = steal = None
    own = sum(rank.own_s for rank in used)
    return {
        "load_average": os.getloadavg()[0],
        # clamped: with the resolution of 10 ms the difference can be negative
        "others_share": None if busy is None else max(0.0, busy - own) / whole,
        "steal_share": None if steal is None else steal / whole,
        "involuntary_switches_per_s": sum(rank.switches for rank in used) / seconds,
    }


def _cores_s() -> tuple[float | None, float | None]:
    # returns busy and stolen seconds, summed over the usable cores
    if not PROC_STAT.exists():
        return None, None
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in PROC_STAT.read_text().splitlines()]
    cores = [[int(x) for x in line[1:]] for line in lines if line[0] in mine]
    # user, nice, system; interrupts belong to no process
    busy = sum(sum(core[:3]) for core in cores)
    steal = sum(core[7] for core in cores)
    ticks = os.sysconf("SC_CLK_TCK")
    return busy / ticks, steal / ticks
