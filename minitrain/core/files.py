"""Crash-safe file writing, and validated reading of regular files.

A file or folder is written under a temporary name in the same folder, synced to disk
and renamed, so a crash of the process or machine leaves either the old or the new
content. Exceptions remove the temporary file; after kill -9 the next writer of the same
path removes it. Replacing a folder takes two renames: a crash between them leaves none.
"""

import difflib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from minitrain.core.errors import NO_SPACE, UserError, is_disk_full

if TYPE_CHECKING:
    import pandas as pd


def _remove_stale(path: Path) -> None:
    # removes temporary files of processes that have exited on this host
    host = re.escape(socket.gethostname())
    ours = re.compile(rf"\.{re.escape(path.name)}\.{host}\.(\d+)(\.old)?\.tmp")
    for found in filter(None, map(ours.fullmatch, os.listdir(path.parent))):
        if not _is_alive(int(found[1])):
            remove(path.with_name(found[0]))


def _is_alive(pid: int) -> bool:
    try:
        # /proc may be hidden in a container
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    # this process has not written yet: its pid was reused
    return pid != os.getpid()


def remove(path: Path) -> None:
    """Remove a file or a folder with its content; ignore a missing path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems cannot sync a folder
        if error.errno != errno.EINVAL or not path.is_dir():
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)


def _put(temporary: Path, path: Path) -> None:
    for inside in [*temporary.rglob("*"), temporary]:
        if not inside.is_symlink():
            fsync(inside)
    old = temporary.with_suffix(".old.tmp")
    if path.is_dir():
        # a rename cannot replace a non-empty folder
        os.replace(path, old)
    try:
        os.replace(temporary, path)
    except OSError:
        if old.exists():
            os.replace(old, path)
        raise
    fsync(path.parent)
    remove(old)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Context manager: yield a temporary path, which is renamed to ``path`` on success.

    The body may create a file or a folder there, which is synced before the rename.
    Replaces an existing ``path`` and removes temporary files of killed writers.

    Raises:
        UserError: the disk is full.
        FileNotFoundError: the body wrote nothing.
        OSError: another error of the operating system; any existing ``path`` is kept.
    """
    # unique to this host and process
    mine = f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp"
    temporary = path.with_name(mine)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        try:
            yield temporary
            # raises if the body wrote nothing, before the old content is replaced
            temporary.lstat()
            _put(temporary, path)
        except OSError as error:
            # report the path that the user knows
            if str(error.filename).startswith(str(temporary)):
                error.filename = str(path)
            raise
        finally:
            remove(temporary)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager: raise UserError if writing ``path`` fails due to a full disk."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise UserError(f"{path}: {NO_SPACE}") from error


@contextmanager
def open_atomic(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Context manager: open ``path`` for writing through :func:`atomic_path`, which
    replaces it on success. ``mode``: ``"w"`` for UTF-8 text, ``"wb"`` for bytes.
    """
    encoding = None if "b" in mode else "utf-8"
    with (
        atomic_path(path) as temporary,
        open(temporary, mode, encoding=encoding) as file,
    ):
        yield file


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; raises ValueError for NaN and infinity."""
    with open_atomic(path) as file:
        json.dump(value, file, indent=2, allow_nan=False, ensure_ascii=False)
        file.write("\n")


def require_regular(path: Path) -> Path:
    """Return ``path`` if it is a regular file or a folder. Raises UserError for a pipe,
    device or socket, and OSError if it does not exist or is not accessible.
    """
    mode = path.stat().st_mode
    # opening a folder fails later with a clear message
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is not a regular file, but a pipe or a device")
    return path


def nearest_file(path: Path, but: Collection[Path] = ()) -> str:
    """Return " (did you mean X?)" with the file in the folder of ``path`` that has the
    closest name, excluding ``but``; empty if none is close or ``path`` exists.
    """
    siblings = {one.name for one in path.parent.glob("*") if one not in but}
    if path.name in siblings:
        return ""
    # a high cutoff: a shared suffix alone is not a match
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.8)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager for reading ``path``, a file that a stage wrote: convert errors
    to a UserError that reports a damaged file, except an OSError that names a file.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # torch raises an OSError without a file name for a truncated file
        if isinstance(error, OSError) and error.filename is not None:
            raise
        # some parsers' messages are pages long
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise UserError(
            f"{path}: damaged, or not of this version ({reason}); regenerate it with "
            "dvc repro (a study's file with make study-NAME)"
        ) from error


def read_json(path: Path, *keys: str) -> Any:
    """Return the JSON document in ``path``; raises UserError if it is not valid JSON in
    UTF-8, or one of ``keys`` is missing.
    """
    with reading(path):
        text = require_regular(path).read_text(encoding="utf-8")
        value = json.loads(text)
        _require(value, keys)
    return value


def _require(row: Any, keys: Iterable[str]) -> None:
    for key in keys:
        if key not in row:
            raise ValueError(f"no {key}")


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write ``rows`` as JSON, one per line; raises ValueError for NaN and infinity."""
    with open_atomic(path) as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")


def each_row(path: Path, *keys: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file; raises UserError for an invalid line, an
    object without one of ``keys``, or a truncated file.
    """
    with reading(path), open(require_regular(path), encoding="utf-8") as file:
        line = ""
        for line in file:
            row = json.loads(line)
            _require(row, keys)
            yield row
        _require_end(line)


def read_jsonl(path: Path, *keys: str) -> list[dict[str, Any]]:
    """Return all rows of a JSON Lines file; see :func:`each_row`."""
    return [*each_row(path, *keys)]


def read_csv(path: Path, *columns: str) -> "pd.DataFrame":
    """Return the table in a CSV file with a header. Raises UserError if the file is not
    valid or is truncated, has not all ``columns``, or a column mixes text and numbers.
    """
    # slow to import, and not needed by the stages about text
    import pandas as pd

    with reading(path):
        text = require_regular(path).read_text(encoding="utf-8")
        _require_end(text)
        table = pd.read_csv(io.StringIO(text))
        _require(table.columns, columns)
        for name, column in table.select_dtypes(exclude=["number", "bool"]).items():
            # a column with both numbers and text is a damaged column of numbers
            known = column.dropna()
            damaged = known[pd.to_numeric(known, errors="coerce").isna()]
            if 0 < len(damaged) < len(known):
                raise ValueError(f"{name}: {damaged.iloc[0]!r} among numbers")
    return table


def _require_end(text: str) -> None:
    # some readers silently skip a truncated last line
    if not text.endswith("\n"):
        raise ValueError("its end is missing" if text else "it is empty")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open(require_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
