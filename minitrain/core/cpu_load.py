"""CPU load from other processes during a measurement, on Linux.

:mod:`minitrain.analysis.busy` evaluates it.
"""

import operator
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from minitrain.core.provenance import usable_cores

PROC_STAT = Path("/proc/stat")
# it counts in units of 10 ms, too coarse for a shorter interval
SHORTEST_S = 1.0


class Usage(NamedTuple):
    """Cumulative CPU usage of one process and its cores at time ``at_s``, in seconds.

    ``busy_s`` and ``steal_s`` sum over all cores that the process may run on: CPU time
    of all processes, and time stolen by the hypervisor. ``own_s`` is the CPU time of
    this process in all threads.
    """

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float

    @classmethod
    def now(cls, *, with_children: bool = False) -> Self:
        """Return the usage so far; ``with_children`` adds exited child processes."""
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in PROC_STAT.read_text().splitlines()]
        cores = [[int(x) for x in line[1:]] for line in lines if line[0] in mine]
        ticks = os.sysconf("SC_CLK_TCK")
        # user, nice, system; interrupts belong to no process
        busy = sum(sum(core[:3]) for core in cores) / ticks
        steal = sum(core[7] for core in cores) / ticks
        own = sum(os.times()[: 4 if with_children else 2])
        return cls(time.perf_counter(), busy, steal, own)

    def since(self, before: "Usage") -> "Usage":
        """Return the usage since ``before``; ``at_s`` becomes the elapsed time."""
        return Usage(*map(operator.sub, self, before))


def taken(load: Mapping[str, Any]) -> float:
    """Return the share of CPU time taken by other processes and the hypervisor in
    ``load``, a :func:`load_of`; unknown shares count as 0.
    """
    return sum(load.get(key) or 0.0 for key in ("others_share", "steal_share"))


def load_of(ranks: Iterable[Usage]) -> dict[str, Any]:
    """Return the CPU load of this machine during a measurement, given the usage of each
    rank on it in that time, from :meth:`Usage.since`: ``others_share`` (processes that
    are not ranks) and ``steal_share`` (hypervisor) of the time of all cores, None for a
    measurement that is too short.
    """
    used = list(ranks)
    seconds, busy, steal, _ = used[0]
    if seconds < SHORTEST_S:
        return {"others_share": None, "steal_share": None}
    own, whole = sum(rank.own_s for rank in used), seconds * usable_cores()
    return {
        # clamped: with the resolution of 10 ms the difference can be negative
        "others_share": max(0.0, busy - own) / whole,
        "steal_share": steal / whole,
    }
