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
from typing import NamedTuple

# free in torch, DVC and Slurm; one that a user's code may use is not taken from it
ASK: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
ANSWER_S = 1.0
# lines of a traceback (innermost last) and of faulthandler (innermost first)
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')
# where a rank stands that waits for another; the rest of torch computes
WAITS = re.compile(
    r"/torch/(distributed/|nn/parallel/|autograd/graph\.py)"
    r"|/minitrain/(comm|sync)/"
)
# what is called to get into a wait and to any other operator
PASSES_ON = re.compile(r"/torch/(_ops|_compile|utils/_contextlib)\.py")
# what a rank calls to meet others, which says little about where it is
COMMUNICATION = re.compile(r"/minitrain/(comm|harness)/")
LIBRARIES = tuple(
    {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")}
)


class Frame(NamedTuple):
    """A line of source that is being executed."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        with suppress(ValueError):
            return f"{Path(self.file).relative_to(Path.cwd())}:{self.line}"
        return f"{Path(self.file).name}:{self.line}"

    @property
    def in_a_library(self) -> bool:
        """True for a file that no reader of the message wrote."""
        return self.file.startswith(("<", *LIBRARIES))


class Stack(list[Frame]):
    """Frames, innermost first."""

    @property
    def waits(self) -> bool:
        """True if another rank is waited for here."""
        inner = next((f for f in self if not PASSES_ON.search(f.file)), None)
        return inner is not None and WAITS.search(inner.file) is not None

    def __str__(self) -> str:
        own = [frame for frame in self if not frame.in_a_library]
        theirs = [f for f in own if not COMMUNICATION.search(f.file)]
        return next((f"in {one}" for one in (theirs or own or self)), "")


def frames(text: str) -> Stack:
    """Return the frames that ``text`` lists, in its order."""
    found = FRAME.finditer(text)
    return Stack(Frame(m["file"], int(m["line"]), m["name"]) for m in found)


def file_of(folder: Path, rank: int | str) -> Path:
    """File of the stack of ``rank``, in the run's ``folder``."""
    return folder / f"stack-{rank}"


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
            if "<module>" in said or time.monotonic() > deadline - ANSWER_S / 2:
                stack = frames(said)
                found |= {pid: stack} if stack else {}
    return found


def read(file: Path) -> str:
    """Return the text of ``file``; nothing if there is none."""
    with suppress(FileNotFoundError):
        return file.read_text(errors="replace")
    return ""


def of_main_thread(text: str) -> Stack:
    """Return the stack of the main thread, the last of what a crash left."""
    return frames(text.split("Thread 0x")[-1])


def of_traceback(text: str) -> Stack:
    """Return the stack of a traceback, whose innermost frame comes last."""
    return Stack(reversed(frames(text)))


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


def native_words(folder: Path, ranks: Iterable[int | str]) -> str:
    """Return what the libraries of all ``ranks`` printed."""
    return "".join(read(words_of(folder, rank)) for rank in ranks)


def words_of(folder: Path, rank: int | str) -> Path:
    """File of what the libraries of ``rank`` print, in the run's ``folder``."""
    return folder / f"words-{rank}"
