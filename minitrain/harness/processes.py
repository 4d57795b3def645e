"""The processes of ranks: which they are, how they are, and their end."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from minitrain.comm.store import STORE


def proc_is_ours() -> bool:
    """Whether /proc exists and has the process ids that this process sees: in a
    container it may be missing, or belong to another namespace.
    """
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def state_of(pid: int) -> str:
    """Of a process: R, S, D, T (stopped), Z (ended) ...; empty where there is none. R
    where there is no /proc that could answer.
    """
    if not proc_is_ours():
        return "R"
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def end(pid: int) -> None:
    """Kill a rank that is not yet buried, and what it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    end_group(pid)


def end_group(pid: int) -> None:
    """Kill what is left of the process group that a rank led, also when it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def ranks_among_children(folder: Path) -> dict[int, int]:
    """The processes of the ranks that this process started to meet in ``folder``."""
    found = {}
    tasks = Path("/proc/self/task").glob("*/children") if proc_is_ours() else ()
    for task in tasks:
        for pid in _words(task):
            variables = _variables(int(pid))
            store = variables.get(STORE, "")
            if Path(store).parent == folder and "RANK" in variables:
                found[int(variables["RANK"])] = int(pid)
    return found


def _words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().split()
    return []


def _variables(pid: int) -> dict[str, str]:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        pairs = [os.fsdecode(line).partition("=") for line in lines]
        return {name: value for name, _, value in pairs}
    return {}
