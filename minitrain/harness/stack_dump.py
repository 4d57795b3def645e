"""Stack dumps of ranks: asked for from outside, answered in C.

The answer needs neither the GIL nor the main loop, so a rank that waits in a collective
answers too. Only one that is stopped, or never started, does not.
"""

import faulthandler
import os
import re
import signal
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from minitrain.comm.heartbeat import file_of

# free in torch, DVC and Slurm; one that a user's code may use is not taken from it
ASK: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
ANSWER_S = 1.0
# lines of a traceback (innermost last) and of faulthandler (innermost first)
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# where a rank stands that waits for another; the rest of torch computes
WAITS = re.compile(
    r"/torch/(distributed/|nn/parallel/|autograd/graph\.py)"
    r"|/minitrain/(comm|sync)/"
)
# what is called to get into a wait and to any other operator
PASSES_ON = re.compile(r"/torch/(_ops|_compile|utils/_contextlib)\.py")
# what a rank calls to meet others, which is no place of its own
COMMUNICATION = re.compile(r"/minitrain/(comm|harness)/")
# no reader of the message wrote these
LIBRARIES = (
    "<",
    *{sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")},
)


class Stack(list[tuple[str, str]]):
    """File and line of each frame that a text lists, innermost first."""

    def __init__(self, text: str, *, innermost_last: bool = False) -> None:
        found = FRAME.findall(text)
        super().__init__(reversed(found) if innermost_last else found)

    @property
    def waits(self) -> bool:
        """True if another rank is waited for here."""
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
    """Have this process write its stack into ``file`` when it is asked or crashes
    (SIGSEGV, SIGABRT and their like).
    """
    # no object that Python closes at its end: a crash may come later
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.enable(fd)
    faulthandler.register(ASK, fd, all_threads=False)


def ask(files: Mapping[int, Path]) -> dict[int, Stack]:
    """Return the stacks, by process, of those that answer within :data:`ANSWER_S`.

    ``files`` are what :func:`answer_in` was called with, by process: one in which that
    has not happened yet would be ended by the question.
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
            said = read(files[pid])[before[pid] :]
            # the outermost frame is the last to be written
            late = time.monotonic() > deadline - ANSWER_S / 2
            if ("<module>" in said or late) and (stack := Stack(said)):
                found[pid] = stack
    return found


def read(file: Path) -> str:
    """Return the text of ``file``; nothing if there is none."""
    with suppress(FileNotFoundError):
        return file.read_text(errors="replace")
    return ""


def of_crash(text: str) -> Stack:
    """Return the stack of the main thread, the last of what a crash left."""
    return Stack(text.split("Thread 0x")[-1])


def keep_native_words(file: Path) -> None:
    """Send what C and C++ libraries print to ``file``; Python goes on as before.

    They print before they abort, a page that the launcher makes a line of.
    """
    sys.stderr.flush()
    python_only = os.dup(2)
    said = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, 2)
    os.close(said)
    stream = open(python_only, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.stderr = stream


def native_words(folder: Path, ranks: Iterable[int]) -> str:
    """Return what the libraries of all ``ranks`` printed."""
    return "".join(read(file_of(folder, rank, "words")) for rank in ranks)
