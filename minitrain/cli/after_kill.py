"""What a killed DVC leaves half-written, put right before the next one.

    python -m minitrain.cli.after_kill

DVC writes dvc.lock, and its notes of who reads and who writes which file, in place: a
kill -9 in that moment leaves their beginning, and no DVC runs again. Its other locks
are held by the kernel, and go with the process; names of processes that are gone DVC
removes from its notes itself.
"""

import fcntl
import json
import re
import sys
import time
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.serialize import parse_yaml
from dvc.utils.strictyaml import validate

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic

NOTES, GUARD = "rwlock", "rwlock.lock"
LOCKS = ("dvc.lock", "studies/*/dvc.lock")
# a DVC that lives has written all of it by then
WRITTEN_S = 1.0
A_STAGE = re.compile(r"^  [^\s#]", re.MULTILINE)


def mend(project: Path) -> list[str]:
    """Put right what a killed DVC left in ``project`` -> a line for each file."""
    notes = remove_torn_notes(project)
    lines = (
        [f"{notes}: a DVC that was killed left half of it; removed"] if notes else []
    )
    for path in sorted(path for name in LOCKS for path in project.glob(name)):
        if keep_whole_stages(path):
            kept = "its whole stages are kept" if path.exists() else "removed"
            lines.append(f"{path}: a DVC that was killed left half of it; {kept}")
    return lines


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


def keep_whole_stages(lock: Path) -> bool:
    """Cut a dvc.lock that is half-written behind its last whole stage, or remove it
    where it has none -> whether there was a need. The stages that are lost DVC gets
    back from its cache of runs, or makes again.

    What is no beginning of a dvc.lock, as one with conflicts of a merge, is left alone.
    """
    torn = _read(lock)
    if is_accepted(torn):
        return False
    time.sleep(WRITTEN_S)
    if not lock.is_file() or _read(lock) != torn:
        return False
    stages = [found.start() for found in A_STAGE.finditer(torn)]
    kept = torn[: stages[-1]] if stages else ""
    if is_accepted(kept):
        with open_atomic(lock) as file:
            file.write(kept)
    elif len(stages) > 1 or not _is_beginning(torn):
        return False
    else:
        lock.unlink()
    return True


def is_accepted(text: str) -> bool:
    """Whether DVC goes on with a dvc.lock of this text."""
    try:
        validate(parse_yaml(text, "dvc.lock"), COMPILED_LOCKFILE_SCHEMA)
    except DvcException:
        return False
    return True


def _is_beginning(text: str) -> bool:
    start = "schema: '2.0'\nstages:\n"
    return text.startswith(start) or start.startswith(text)


def _read(lock: Path) -> str:
    return lock.read_text(encoding="utf-8", errors="replace")


def main() -> None:
    """Do so in the working directory, and say it."""
    for line in mend(Path()):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    run_stage(main)
