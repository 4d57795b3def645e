"""A full disk: how to know it behind what libraries raise, and what to say."""

import errno
import os
from pathlib import Path

# no room on the disk, or none that this user may take
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# all that torch.save says that was given a path
OF_TORCH = "unexpected pos"


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind ``error``: some libraries raise another for it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        if OF_TORCH in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full(path: Path) -> str:
    """What to say of a ``path`` that could not be written for want of room."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        disk = os.statvfs(there)
    except OSError:
        return "no space left on the disk"
    if disk.f_files and not disk.f_favail:
        return "no space left on the disk: not one more file may be made there"
    free = disk.f_bavail * disk.f_frsize / 1e6
    return f"no space left on the disk: it needs more than the {free:.1f} MB free there"
