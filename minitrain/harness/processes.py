"""The processes of ranks, all children of this one: their state and their end."""

import os
import signal
from contextlib import suppress
from enum import Enum
from pathlib import Path

import psutil

from minitrain.comm.store import STORE


class State(Enum):
    """State of a child process; one that ended may still be a zombie."""

    RUNS, STOPPED, ENDED = range(3)


def state_of(pid: int) -> State:
    """State of the child ``pid``, which is left to be waited for."""
    how = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    try:
        found = os.waitid(os.P_PID, pid, how)
    except ChildProcessError:
        return State.ENDED
    if found is None:
        return State.RUNS
    return State.STOPPED if found.si_code == os.CLD_STOPPED else State.ENDED


def end(pid: int) -> None:
    """Kill a rank and what is left of the process group that it leads."""
    # the number of one that has ended may be another's by now
    kills = [os.killpg] if state_of(pid) is State.ENDED else [os.kill, os.killpg]
    for kill in kills:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def ranks_among_children(folder: Path) -> dict[int, int]:
    """Processes of the ranks of the run in ``folder``, by local rank."""
    found = {}
    for child in _children():
        with suppress(psutil.Error):
            variables = child.environ()
            if Path(variables.get(STORE, "")).parent == folder:
                found[int(variables.get("LOCAL_RANK", "-1"))] = child.pid
    found.pop(-1, None)
    return found


def _children() -> list[psutil.Process]:
    # in a container /proc may be hidden, or that of another namespace
    with suppress(OSError, psutil.Error):
        if os.readlink("/proc/self") == str(os.getpid()):
            return psutil.Process().children()
    return []
