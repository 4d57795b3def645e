"""Reading files of others: only regular ones, and of a size that memory holds."""

import stat
from pathlib import Path

from minitrain.core.errors import UserError

# of one file that is read as a whole: an index, metadata, a rank's recording
MOST_OF_INDEX, MOST_OF_METADATA, MOST_OF_RECORDING = 1 << 28, 1 << 30, 1 << 34


def require_regular(path: Path, most: int | None = None) -> Path:
    """Return ``path``.

    Raises:
        UserError: it is a pipe, a device or a socket, or has more than ``most`` bytes.
        OSError: it does not exist or cannot be looked at.
    """
    found = path.stat()
    # a folder is refused by open, at once and with its reason
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise UserError(f"{path}: is no regular file (a pipe or a device): not read")
    if most is not None and found.st_size > most:
        raise UserError(f"{path}: has {found.st_size} bytes: must be at most {most}")
    return path
