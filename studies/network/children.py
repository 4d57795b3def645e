"""What this process and the stages that it starts use of the machine's cores."""

from dataclasses import replace
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from minitrain.core.load import Usage


def usage_with_children() -> Usage:
    """Readings at this moment. Processes that have ended count, with all that they
    waited for themselves; what computes and is none of them is somebody else.
    """
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return replace(
        Usage.now(),
        own_s=sum(one.ru_utime + one.ru_stime for one in used),
        switches=sum(one.ru_nivcsw for one in used),
    )
