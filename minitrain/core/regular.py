"""Check of untrusted files before reading: regular, and of limited size."""

import stat
from pathlib import Path

from minitrain.core.errors import UserError

# size limits in bytes of files that are read as a whole
MOST_OF_INDEX, MOST_OF_METADATA, MOST_OF_RECORDING = 1 << 28, 1 << 30, 1 << 34


def require_regular(path: Path, most: int | None = None) -> Path:
    """Return ``path``.

    Raises:
        UserError: it is a pipe, device or socket, or is larger than ``most`` bytes.
        OSError: it does not exist or is not accessible.
    """
    found = path.stat()
    # opening a folder fails later with a clear message
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise UserError(f"{path}: is not a regular file, but a pipe or a device")
    if most is not None and found.st_size > most:
        raise UserError(f"{path}: has {found.st_size} bytes: must be at most {most}")
    return path
