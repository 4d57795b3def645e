"""Putting what was written in its place so that a crash at any moment, of a process or
of the machine, leaves the old or the new, each whole.

A folder takes its place in two renames. Killed between them, its name is missing until
the next writer on this host puts the old one back (:func:`remove_stale`).
"""

import errno
import os
import re
import shutil
import socket
from pathlib import Path


def temporary_name(path: Path) -> Path:
    """A sibling of ``path`` to write it in; it names this host and this process."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def _out_of_the_way(path: Path) -> Path:
    """Where a folder stands while another takes its name in two steps."""
    return temporary_name(path).with_suffix(".before.tmp")


def remove_stale(path: Path) -> None:
    """Remove what dead processes of this host left of writing ``path``; one that died
    between two steps of replacing a folder gets it back.
    """
    host = re.escape(socket.gethostname())
    ours = re.compile(rf"\.{re.escape(path.name)}\.{host}\.(\d+)(\.before)?\.tmp")
    for found in filter(None, map(ours.fullmatch, os.listdir(path.parent))):
        if _is_alive(int(found[1])):
            continue
        if found[2] and not os.path.lexists(path):
            os.replace(path.with_name(found[0]), path)
        else:
            remove(path.with_name(found[0]))


def _is_alive(pid: int) -> bool:
    # this process has only begun: what bears its number is of one before it
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; neither need be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until the disk has ``path``, a file or a folder with all that is in it."""
    if path.is_symlink():
        return
    if path.is_dir():
        for inside in path.iterdir():
            sync(inside)
    fsync(path)


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


def put(temporary: Path, path: Path) -> None:
    """Give ``temporary`` the name ``path``, for good. What was there is gone, or, where
    it was a folder, is then called ``temporary``.
    """
    sync(temporary)
    if path.is_dir():
        # no rename replaces a folder that is not empty
        _replace_folder(temporary, path)
    else:
        os.replace(temporary, path)
    fsync(path.parent)


def _replace_folder(temporary: Path, path: Path) -> None:
    before = _out_of_the_way(path)
    os.replace(path, before)
    try:
        os.replace(temporary, path)
    except OSError:
        os.replace(before, path)
        raise
    os.replace(before, temporary)
