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
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.serialize import dumps_yaml, parse_yaml
from dvc.utils.strictyaml import validate

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic

NOTES, GUARD = "rwlock", "rwlock.lock"
LOCKS = ("dvc.lock", "studies/*/dvc.lock")
# a DVC that lives has written all of it by then
WRITTEN_S = 1.0
HEAD = "schema: '2.0'\nstages:\n"
A_STAGE = re.compile(r"^  [^\s#]", re.MULTILINE)


def mend(project: Path) -> list[str]:
    """Put right what a killed DVC left in ``project`` -> a line for each file."""
    notes = remove_torn_notes(project)
    lines = (
        [f"{notes}: a DVC that was killed left half of it; removed"] if notes else []
    )
    for path in sorted(path for name in LOCKS for path in project.glob(name)):
        if restore_stages(path):
            now = "has its whole stages, and the others as committed"
            lines.append(
                f"{path}: a DVC that was killed left half of it; "
                f"{now if path.exists() else 'removed'}"
            )
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


def restore_stages(lock: Path) -> bool:
    """Of a dvc.lock that is half-written keep the stages that are whole, and take the
    others from the last commit; without any, remove it -> whether there was a need.
    DVC holds each stage against what lies there, so one that is missing, or older,
    comes from its cache of runs, or is made again.

    What is no beginning of a dvc.lock, as one with conflicts of a merge, is left alone.
    """
    torn = _read(lock)
    if stages_of(torn) is not None:
        return False
    time.sleep(WRITTEN_S)
    if not lock.is_file() or _read(lock) != torn:
        return False
    starts = [found.start() for found in A_STAGE.finditer(torn)]
    whole = stages_of(torn[: starts[-1]]) if len(starts) > 1 else {}
    before = torn[: starts[0]] if starts else torn.rstrip(" ")
    if whole is None or not HEAD.startswith(before):
        return False
    stages = {**(stages_of(_committed(lock)) or {}), **whole}
    if stages:
        with open_atomic(lock) as file:
            file.write(dumps_yaml({"schema": "2.0", "stages": stages}))
    else:
        lock.unlink()
    return True


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
        done = subprocess.run(command, cwd=lock.parent, capture_output=True, text=True)
        return done.stdout
    return ""


def _read(lock: Path) -> str:
    return lock.read_text(encoding="utf-8", errors="replace")


def main() -> None:
    """Do so in the working directory, and say it."""
    for line in mend(Path()):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    run_stage(main)
