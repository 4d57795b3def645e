"""Owners of shared memory: several tests run on a machine at a time."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
MAPPED = re.compile(rf"{FOLDER}/([^/\n]+?)(?: \(deleted\))?$", re.MULTILINE)


def segments() -> set[str]:
    return {path.name for path in FOLDER.iterdir()} if FOLDER.is_dir() else set()


def held_by(whom: Callable[[int], bool]) -> set[str]:
    found: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # it may have gone meanwhile
        with suppress(OSError):
            if whom(int(folder.name)):
                found |= {*MAPPED.findall((folder / "maps").read_text())}
    return found
