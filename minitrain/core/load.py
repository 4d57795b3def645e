"""How busy a machine is with other things while something is measured on it.

The shares are None but on Linux; :mod:`minitrain.analysis.busy` judges them.
"""

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from minitrain.core.provenance import usable_cores

PROC_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Usage:
    """Readings of one process: a moment, and what was used up to it, in seconds.

    ``busy_s`` and ``steal_s`` are of all cores that the process may run on: computing,
    and waiting for a hypervisor. ``own_s`` is the process's own computing, in all
    threads; ``switches`` how often one of them had to give up its core.
    """

    at_s: float
    busy_s: float | None
    steal_s: float | None
    own_s: float
    switches: int

    @classmethod
    def now(cls, *, with_children: bool = False) -> Self:
        """Read now; ``with_children``: with what processes used that this one started
        and that have ended.
        """
        busy, steal = _cores_s()
        at, own = time.perf_counter(), time.process_time()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        if with_children:
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            own += ended.ru_utime + ended.ru_stime
            switches += ended.ru_nivcsw
        return cls(at, busy, steal, own, switches)

    def since(self, before: "Usage") -> "Usage":
        """Return what was used from ``before`` on; ``at_s`` is the time that passed."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        used: list[Any] = [
            None if None in pair else pair[0] - pair[1] for pair in pairs
        ]
        return Usage(*used)


def load_of(ranks: Iterable[Usage]) -> dict[str, Any]:
    """Return the load of a machine while ``ranks`` measured; each is what one used.

    ``others_share`` and ``steal_share`` are of the time of all cores: of processes that
    are no rank, and of the hypervisor. ``load_average`` is that of the last minute.
    """
    used = list(ranks)
    seconds, whole = used[0].at_s, used[0].at_s * usable_cores()
    busy, steal = used[0].busy_s, used[0].steal_s
    own = sum(rank.own_s for rank in used)
    return {
        "load_average": os.getloadavg()[0],
        # counted in hundredths of a second, so that nothing can look like less
        "others_share": None if busy is None else max(0.0, busy - own) / whole,
        "steal_share": None if steal is None else steal / whole,
        "involuntary_switches_per_s": sum(rank.switches for rank in used) / seconds,
    }


def _cores_s() -> tuple[float | None, float | None]:
    # seconds that the usable cores were computing, and that they were stolen
    if not PROC_STAT.exists():
        return None, None
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in PROC_STAT.read_text().splitlines()]
    cores = [[int(x) for x in line[1:]] for line in lines if line[0] in mine]
    # user, nice, system; interrupts are left out: they belong to no process
    busy = sum(sum(core[:3]) for core in cores)
    steal = sum(core[7] for core in cores)
    ticks = os.sysconf("SC_CLK_TCK")
    return busy / ticks, steal / ticks
