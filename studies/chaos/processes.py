"""Processes of a trial, found by a mark in their environment."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "CHAOS_TRIAL"


def processes(mark: str) -> dict[int, str]:
    """Return their pids and roles: dvc, shell, stage, rank or other."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            marked = f"{MARK}={mark}".encode() in environ(folder)
            if marked and state(folder) not in "ZX":
                found[int(folder.name)] = role(folder)
    return found


def state(folder: Path) -> str:
    """Return the state of a process: R, S, T, Z ..."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def environ(folder: Path) -> list[bytes]:
    return (folder / "environ").read_bytes().split(b"\0")


def role(folder: Path) -> str:
    words = command(folder)
    if words[1:3] == ["-m", "dvc"]:
        return "dvc"
    # ranks have -u before -m
    if any(word.startswith("stages.") for word in words[1:4]):
        names = [variable.partition(b"=")[0] for variable in environ(folder)]
        return "rank" if b"RANK" in names else "stage"
    return "shell" if words[0].endswith("sh") or "stages/python" in words else "other"


def command(folder: Path) -> list[str]:
    return (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")


def with_role(mark: str, *roles: str) -> list[int]:
    """Return the sorted pids of processes with one of ``roles``."""
    return sorted(pid for pid, name in processes(mark).items() if name in roles)


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_all(mark: str) -> None:
    """Send SIGKILL to all of them until none is left."""
    while left := list(processes(mark)):
        send(signal.SIGKILL, left)
        time.sleep(0.01)


def wait_until(look: Callable[[], object], limit_s: float) -> bool:
    """Poll ``look`` for at most ``limit_s`` seconds; return true once it does."""
    deadline = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
