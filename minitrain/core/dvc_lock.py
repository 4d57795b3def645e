"""What a killed DVC leaves where it notes who reads and who writes which file.

    python -m minitrain.core.dvc_lock

DVC writes ``.dvc/tmp/rwlock`` in place, so that kill -9 in that moment leaves half of
it, and no DVC runs again before it is removed. Its other locks are held by the kernel,
and go with the process; names of processes that are gone DVC removes from it itself.
"""

import fcntl
import json
import sys
from pathlib import Path

from minitrain.core.errors import run_stage

NOTES, GUARD = "rwlock", "rwlock.lock"


def remove_torn_notes(project: Path) -> Path | None:
    """Remove DVC's notes of locks in ``project`` where they are half-written -> their
    path; None where there was no need, or where a DVC is writing them just now.
    """
    notes, guard = (project / ".dvc/tmp" / name for name in (NOTES, GUARD))
    if not notes.is_file() or not guard.is_file():
        return None
    with open(guard) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            json.loads(notes.read_text())
        except BlockingIOError:
            return None
        except (ValueError, FileNotFoundError):
            notes.unlink(missing_ok=True)
            return notes
    return None


def main() -> None:
    """Do so in the working directory, and say it."""
    if removed := remove_torn_notes(Path()):
        line = f"{removed}: a DVC that was killed left half of it; removed"
        print(line, file=sys.stderr)


if __name__ == "__main__":
    run_stage(main)
