"""Writing files so that a reader never meets half of one.

Everything is written under a temporary name in the same folder and renamed when
it is complete; an exception removes the temporary name.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` that becomes ``path`` on success.

    The body may create a file or a folder there. An existing ``path`` is
    replaced. Raises OSError as the operating system does, and FileNotFoundError for a
    body that wrote nothing; what was at ``path`` is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    before = path.with_name(f".{path.name}.{os.getpid()}.before.tmp")
    try:
        try:
            yield temporary
        except OSError as error:
            if str(error.filename) == str(temporary):
                error.filename = str(path)
            raise
        # lstat: a body that wrote nothing must not cost what was there before
        temporary.lstat()
        if path.is_dir():
            # a folder cannot be replaced in one go: out of the way, not half-deleted
            os.replace(path, before)
        os.replace(temporary, path)
    finally:
        _remove(temporary)
        _remove(before)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def open_atomic(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` for writing by :func:`atomic_path`: ``"w"`` is UTF-8 text with
    LF as line ends on every system, ``"wb"`` bytes.
    """
    encoding = None if "b" in mode else "utf-8"
    newline = None if "b" in mode else "\n"
    with (
        atomic_path(path) as temporary,
        open(temporary, mode, encoding=encoding, newline=newline) as file,
    ):
        yield file


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; NaN and infinity are refused (ValueError)."""
    with open_atomic(path) as file:
        json.dump(value, file, indent=2, allow_nan=False, ensure_ascii=False)
        file.write("\n")


def read_json(path: Path) -> Any:
    """Read one JSON document (UTF-8); ValueError where it is none."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line; NaN and infinity are refused (ValueError)."""
    with open_atomic(path) as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line; ValueError where one is none."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
