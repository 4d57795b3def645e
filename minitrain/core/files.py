"""Writing files so that a crash at any moment, of a process or of the machine, leaves
the old or the new, each whole; and reading them.

Everything is written under a temporary name in the same folder and renamed when
it is complete and on the disk; an exception removes the temporary name, and after
kill -9 the next writer of the same file does. A folder that is replaced is missing
for a moment: a crash in that moment leaves neither.
"""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, AnyStr

from minitrain.core.errors import UserError, disk_full, is_disk_full
from minitrain.core.regular import MOST_OF_INDEX, require_regular

if TYPE_CHECKING:
    import pandas as pd

LONGEST_LINE = 1 << 26


def _remove_stale(path: Path) -> None:
    # what dead processes of this host left of writing it
    host = re.escape(socket.gethostname())
    ours = re.compile(rf"\.{re.escape(path.name)}\.{host}\.(\d+)(\.old)?\.tmp")
    for found in filter(None, map(ours.fullmatch, os.listdir(path.parent))):
        if not _is_alive(int(found[1])):
            remove(path.with_name(found[0]))


def _is_alive(pid: int) -> bool:
    try:
        # not by /proc, which a container may hide
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    # this process has only begun: what bears its number is of one before it
    return pid != os.getpid()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; neither need be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems sync files only
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
        # no rename replaces a folder that is not empty
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
    """Yield a temporary sibling of ``path`` that becomes ``path`` on success.

    The body may create a file or a folder there; all of it is on the disk when it gets
    its name. An existing ``path`` is replaced; what a killed writer of it had begun is
    removed first. Raises UserError where the disk is full, else OSError as the
    operating system does, and FileNotFoundError for a body that wrote nothing; what was
    at ``path`` is then still there.
    """
    # a name that no other host or process writes to
    mine = f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp"
    temporary = path.with_name(mine)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        try:
            yield temporary
            # a body that wrote nothing must not cost what was there before
            temporary.lstat()
            _put(temporary, path)
        except OSError as error:
            # the temporary name says nothing to a user
            if str(error.filename).startswith(str(temporary)):
                error.filename = str(path)
            raise
        finally:
            remove(temporary)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make one UserError of a full disk, also behind another error of what writes
    ``path``.
    """
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise UserError(f"{path}: {disk_full(path)}") from error


@contextmanager
def open_atomic(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` for writing by :func:`atomic_path`: ``"w"`` is UTF-8 text, ``"wb"``
    bytes.
    """
    encoding = None if "b" in mode else "utf-8"
    with (
        atomic_path(path) as temporary,
        open(temporary, mode, encoding=encoding) as file,
    ):
        yield file


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; NaN and infinity are refused (ValueError)."""
    with open_atomic(path) as file:
        json.dump(value, file, indent=2, allow_nan=False, ensure_ascii=False)
        file.write("\n")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Make one UserError of any error but OSError while ``path`` is read, a file that a
    stage wrote and that is damaged.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # torch raises one without a name for a file that was cut
        if isinstance(error, OSError) and error.filename is not None:
            raise
        # parsers raise what they like, some of it pages long
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise UserError(
            f"{path}: damaged, or not of this version ({reason}); dvc repro makes it "
            "again (make study-NAME what a study measured)"
        ) from error


def read_json(path: Path, *keys: str) -> Any:
    """Read one JSON document (UTF-8), an object that has ``keys`` where there are any;
    UserError where it is none.
    """
    with reading(path):
        text = require_regular(path, MOST_OF_INDEX).read_text(encoding="utf-8")
        value = json.loads(text)
        _require(value, keys)
    return value


def _require(row: Any, keys: Iterable[str]) -> None:
    for key in keys:
        if key not in row:
            raise ValueError(f"no {key}")


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line; NaN and infinity are refused (ValueError)."""
    with open_atomic(path) as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")


def each_row(path: Path, *keys: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file that has one a line, each with ``keys``; UserError
    where one is none, or the file does not end as it was written.
    """
    with reading(path), open(require_regular(path), encoding="utf-8") as file:
        line = ""
        for line in each_line(file):
            row = json.loads(line)
            _require(row, keys)
            yield row
        _require_end(line)


def each_line(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines of ``file``; ValueError for one that is too long to hold."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line of more than {LONGEST_LINE >> 20} MiB")
        yield line


def read_jsonl(path: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the rows of :func:`each_row`."""
    return [*each_row(path, *keys)]


def read_csv(path: Path, *columns: str) -> "pd.DataFrame":
    """A table with a row of names, among them ``columns``; UserError where it is none,
    or does not end as it was written.
    """
    # slow to import, and stages about text need no table
    import pandas as pd

    with reading(path):
        text = require_regular(path, MOST_OF_INDEX).read_text(encoding="utf-8")
        _require_end(text)
        table = pd.read_csv(io.StringIO(text))
        _require(table.columns, columns)
        for name, column in table.select_dtypes(exclude=["number", "bool"]).items():
            # text is text in each row: a number is damaged where some are not
            known = column.dropna()
            damaged = known[pd.to_numeric(known, errors="coerce").isna()]
            if 0 < len(damaged) < len(known):
                raise ValueError(f"{name}: {damaged.iloc[0]!r} among numbers")
    return table


def _require_end(text: str) -> None:
    # of a file cut within a line some readers make fewer rows and say nothing
    if not text.endswith("\n"):
        raise ValueError("its end is missing" if text else "it is empty")


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(require_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
