"""Stack dumps of ranks on request, by a signal handler in C (faulthandler).

A dump needs neither the GIL nor the main thread, so it works for a rank that waits in a
collective. Only a rank that is stopped or never started does not answer.
"""

import faulthandler
import os
import re
import signal
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# signal that requests a dump: torch, DVC and Slurm do not use it, and user code rarely
ASK: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
ANSWER_S = 1.0
# lines of a traceback (innermost last) and of faulthandler (innermost first)
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# innermost frames of a rank that waits for another; the rest of torch computes
WAITS = re.compile(
    r"/torch/(distributed/|nn/parallel/|autograd/graph\.py)"
    r"|/minitrain/(comm|sync)/"
)
# frames that torch puts around any operator, a wait or not; skipped
PASSES_ON = re.compile(r"/torch/(_ops|_compile|utils/_contextlib)\.py")
# frames of communication code, not of the rank's own code
COMMUNICATION = re.compile(r"/minitrain/(comm|harness)/")
# frames that are not user code
LIBRARIES = (
    "<",
    *{sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")},
)


class Stack(list[tuple[str, str]]):
    """Frames (file, line) of ``text``, innermost first: a dump by faulthandler, or, if
    ``innermost_last``, a Python traceback. ``str()`` returns ``in FILE:LINE`` of the
    innermost frame, preferably of user code.
    """

    def __init__(self, text: str, *, innermost_last: bool = False) -> None:
        found = FRAME.findall(text)
        super().__init__(reversed(found) if innermost_last else found)

    @property
    def waits(self) -> bool:
        """True if the rank waits for another rank, according to its innermost frame."""
        inner = next((file for file, _ in self if not PASSES_ON.search(file)), "")
        return WAITS.search(inner) is not None

    def __str__(self) -> str:
        own = [frame for frame in self if not frame[0].startswith(LIBRARIES)]
        theirs = [frame for frame in own if not COMMUNICATION.search(frame[0])]
        for file, line in theirs or own or self:
            path = Path(file)
            here = path.is_relative_to(Path.cwd())
            return f"in {path.relative_to(Path.cwd()) if here else path.name}:{line}"
        return ""


def answer_in(file: Path) -> None:
    """Have this process append its stack to ``file`` on signal :data:`ASK` and on a
    crash (SIGSEGV, SIGABRT and similar).
    """
    # a raw descriptor, which stays open after Python's shutdown closes files
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.enable(fd)
    faulthandler.register(ASK, fd, all_threads=False)


def ask(files: Mapping[int, Path]) -> dict[int, Stack]:
    """Request stack dumps, and return the stacks by pid. A process that does not answer
    within :data:`ANSWER_S` seconds is omitted.

    ``files`` maps each pid to the file passed to :func:`answer_in` in that process; the
    signal would kill a process that has not called :func:`answer_in`.
    """
    before = {pid: len(read(file)) for pid, file in files.items()}
    for pid in files:
        with suppress(ProcessLookupError):
            os.kill(pid, ASK)
    deadline = time.monotonic() + ANSWER_S
    found: dict[int, Stack] = {}
    while len(found) < len(files) and time.monotonic() < deadline:
        time.sleep(0.05)
        for pid in files.keys() - found:
            dump = read(files[pid])[before[pid] :]
            # the outermost frame is written last
            late = time.monotonic() > deadline - ANSWER_S / 2
            if ("<module>" in dump or late) and (stack := Stack(dump)):
                found[pid] = stack
    return found


def read(file: Path) -> str:
    """Return the text of ``file``, empty if it is missing."""
    with suppress(FileNotFoundError):
        return file.read_text(errors="replace")
    return ""
