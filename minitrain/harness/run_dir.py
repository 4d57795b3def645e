"""The folder in which the ranks of one host meet, gone with the process that made it.

Its maker holds a lock on it, which the kernel releases however that process ends. So
the next launcher knows which folders are abandoned.
"""

import fcntl
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minitrain.core.errors import UserError

PREFIX = f"minitrain-meeting-{socket.gethostname()}-"
# to meet; what a check saves there is more, and is refused where it is written
ROOM_BYTES = 1 << 20


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for what ranks of one host share, that only their user may enter.

    Removes those that killed processes of this user left on this host. Raises UserError
    if the folder for temporary files is full.
    """
    remove_abandoned()
    lock = None
    # none where another process came in between, and took it for abandoned
    while lock is None:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(folder, fcntl.LOCK_EX)
    try:
        free = shutil.disk_usage(folder).free
        if free < ROOM_BYTES:
            raise UserError(
                f"{folder.parent}: no space left on the disk: {free / 1e6:.1f} MB are "
                f"free, and ranks that meet there need {ROOM_BYTES / 1e6:.1f}; TMPDIR "
                "names another folder"
            )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> list[Path]:
    """Remove the folders of this user on this host whose makers are gone -> those."""
    removed = []
    # no name of another host: what comes behind its name has no hyphen
    ours = re.compile(re.escape(PREFIX) + "[a-z0-9_]+")
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not ours.fullmatch(folder.name):
            continue
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            removed.append(folder)
    return removed


def _lock(folder: Path, how: int) -> int | None:
    # -> the descriptor that holds the lock; None if the folder is another user's, or a
    # link, or locked by a process that lives, or not there any more
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, how)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return descriptor
    os.close(descriptor)
    return None
