"""Leftovers of a trial: processes, files, shared memory."""

from collections.abc import Iterable
from pathlib import Path

from processes import processes, wait_until

# time for processes to exit; a stage cleans up for at most 10 s
GONE_S = 15.0


def segments() -> set[str]:
    """Return the names of shared-memory segments."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def left_behind(
    marks: Iterable[str], folder: Path, temporary: Path, shared: set[str]
) -> list[str]:
    """Return what a trial left behind, except ``shared``, after a grace period."""

    def look() -> list[str]:
        left = [f"process {p} ({r})" for m in marks for p, r in processes(m).items()]
        left += [f"shared memory {name}" for name in sorted(segments() - shared)]
        left += [f"temporary {path.name}" for path in sorted(temporary.iterdir())]
        files = [file for file in folder.rglob("*.tmp") if ".dvc" not in file.parts]
        # temporary files of a run that succeeded
        files += folder.glob(".minitrain/checkpoints/*/step-*")
        return left + [f"file {file.relative_to(folder)}" for file in files]

    wait_until(lambda: not look(), GONE_S)
    return [f"left behind: {what}" for what in look()]
