"""Temporary folder for the rendezvous of the ranks on one host.

Its creator holds a lock on it, which the kernel releases however the process ends, so
the next launcher can detect and remove abandoned folders.
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
# enough for the rendezvous; larger files report a full disk when they are written
ROOM_BYTES = 1 << 20


@contextmanager
def private_folder() -> Iterator[Path]:
    """Context manager: remove abandoned folders, then yield a temporary folder for
    files shared by the ranks of one host, accessible to this user only and removed at
    the end. Raises UserError if the disk is full.
    """
    remove_abandoned()
    # under another name until it is locked: others remove folders without a lock
    begun = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    lock = os.open(begun, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = begun.rename(begun.with_name(begun.name.removeprefix(".")))
    try:
        free = shutil.disk_usage(folder).free
        if free < ROOM_BYTES:
            raise UserError(
                f"{folder.parent}: no space left on the disk: {free / 1e6:.1f} MB are "
                f"free, ranks need {ROOM_BYTES / 1e6:.1f}; choose another folder with "
                "TMPDIR"
            )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> None:
    """Remove folders of :func:`private_folder` of this user on this host that no
    running process has locked.
    """
    # exactly mkdtemp's 8 characters: another host's name may start with this one's
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{'?' * 8}"):
        # another user may have created a link or a pipe there
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with suppress(BlockingIOError):
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
