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
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.serialize import dumps_yaml, parse_yaml
from dvc.utils.strictyaml import merge_conflict_marker, validate

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic

NOTES, GUARD = "rwlock", "rwlock.lock"
LOCKS = ("dvc.lock", "studies/*/dvc.lock")
HALF = "a DVC that was killed left half of it"
BEGINNING = "schema: '2.0'\nstages:\n"
A_STAGE = re.compile(r"^  [^\s#]", re.MULTILINE)
# of DVC's data registries, which this project does not have
DATASETS = re.compile("^datasets:", re.MULTILINE)


def mend(project: Path) -> list[str]:
    """Put right what a killed DVC left in ``project`` -> a line for each file."""
    notes = remove_torn_notes(project)
    lines = [f"{notes}: {HALF}; removed"] if notes else []
    locks = sorted(path for name in LOCKS for path in project.glob(name))
    torn = [path for path in locks if whole_stages(_read(path)) is not None]
    if torn:
        # whoever holds DVC's lock lives, and may be writing it
        held_up = suppress(LockError, NotDvcRepoError)
        with held_up, Repo(str(project)) as repo, repo.lock:
            lines += [f"{path}: {HALF}; {now}" for path, now in _restored(torn)]
    return lines


def _restored(locks: list[Path]) -> Iterator[tuple[Path, str]]:
    for path in locks:
        if restore_stages(path):
            now = "it has its whole stages, and the others as committed"
            yield path, now if path.exists() else "removed"


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


def restore_stages(lock: Path) -> bool:
    """Of a dvc.lock that is half-written keep the stages that are whole, and take the
    others from the last commit; without any, remove it -> whether it was changed.
    DVC holds each stage against what lies there, so one that is missing, or older,
    comes from its cache of runs, or is made again.
    """
    torn, committed = _read(lock), _committed(lock)
    whole = whole_stages(torn)
    if whole is None or DATASETS.search(committed):
        return False
    if stages := {**(stages_of(committed) or {}), **whole}:
        with open_atomic(lock) as file:
            file.write(dumps_yaml({"schema": "2.0", "stages": stages}))
        return True
    # a line that is whole may be the last one that a newer DVC wrote
    if torn.endswith("\n") and not BEGINNING.startswith(torn):
        return False
    lock.unlink()
    return True


def whole_stages(text: str) -> dict[str, Any] | None:
    """Those that are whole in the beginning of a dvc.lock; None for what is all of one,
    or no beginning, as what a merge left with conflicts.
    """
    if merge_conflict_marker.search(text) or DATASETS.search(text):
        return None
    # DVC takes many a beginning for all of it, but its last line has an end
    if text.endswith("\n") and stages_of(text) is not None:
        return None
    starts = [found.start() for found in A_STAGE.finditer(text)]
    before = text[: starts[0]] if starts else text.rstrip(" ")
    if not BEGINNING.startswith(before):
        return None
    return stages_of(text[: starts[-1]]) if len(starts) > 1 else {}


def stages_of(text: str) -> dict[str, Any] | None:
    """Those in a dvc.lock of this text, by name; None where DVC does not take it."""
    try:
        data = parse_yaml(text, "dvc.lock")
        return validate(data, COMPILED_LOCKFILE_SCHEMA).get("stages", {})
    except DvcException:
        return None


def _committed(lock: Path) -> str:
    """What git has of it; nothing where there is no git, or none of it."""
    command = ["git", "show", f"HEAD:./{lock.name}"]
    with suppress(FileNotFoundError):
        done = subprocess.run(command, cwd=lock.parent, capture_output=True)
        return done.stdout.decode(errors="replace")
    return ""


def _read(lock: Path) -> str:
    return lock.read_text(encoding="utf-8", errors="replace")


def main() -> None:
    """Do so in the working directory, and say it."""
    for line in mend(Path()):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    run_stage(main)
