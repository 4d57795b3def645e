"""What of a trial is still there after it: processes, files, shared memory."""

from collections.abc import Iterable
from pathlib import Path

from processes import processes, wait_until

# what ends may take this long to be gone: a stage cleans up for at most 10 s
GONE_S = 15.0


def segments() -> set[str]:
    """Of shared memory."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def left_behind(
    marks: Iterable[str], folder: Path, temporary: Path, shared: set[str]
) -> list[str]:
    """What of a trial is still there after a moment. ``shared`` was there before."""

    def look() -> list[str]:
        left = [f"process {p} ({r})" for m in marks for p, r in processes(m).items()]
        left += [f"shared memory {name}" for name in sorted(segments() - shared)]
        left += [f"temporary {path.name}" for path in sorted(temporary.iterdir())]
        files = [file for file in folder.rglob("*.tmp") if ".dvc" not in file.parts]
        # the run that they belong to has succeeded
        files += folder.glob(".minitrain/checkpoints/*/step-*")
        return left + [f"file {file.relative_to(folder)}" for file in files]

    wait_until(lambda: not look(), GONE_S)
    return [f"left behind: {what}" for what in look()]
