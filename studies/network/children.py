"""CPU usage of this process and of the stages that it starts."""

from dataclasses import replace
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from minitrain.core.cpu_load import Usage


def usage_with_children() -> Usage:
    """Read CPU usage, including exited children that were waited for. CPU time of any
    other process counts as foreign load.
    """
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return replace(
        Usage.now(),
        own_s=sum(one.ru_utime + one.ru_stime for one in used),
        switches=sum(one.ru_nivcsw for one in used),
    )
