"""The folder in which the ranks of one host meet, gone with the process that made it.

Its maker holds a lock on it, which the kernel releases however that process ends. So
the next launcher knows which folders are abandoned.
"""

import fcntl
import os
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
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        # until it is locked, another process may take it for abandoned
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(lock)
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
    # as many characters as mkdtemp adds: the name of another host may begin alike
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{'?' * 8}"):
        # another user may have put a link or a pipe there
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with suppress(BlockingIOError):
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
            os.close(lock)
    return removed
