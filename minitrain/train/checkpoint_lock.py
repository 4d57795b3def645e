"""One process at a time writes into a folder of checkpoints.

A stage may still be on its way out when the next one begins: DVC was killed, say.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from minitrain.core.errors import UserError
from minitrain.core.files import fsync

# a stage that is told to end has ten seconds
WAIT_S = 15.0
POLL_S = 0.1
# by folder: let go when this process ends, however it ends
_held: dict[Path, int] = {}


def hold(folder: Path) -> None:
    """Make ``folder`` and lock it until this process ends; again is harmless.

    Waits for a process that is about to end. Raises UserError for one that is not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for above in (folder.parent, folder.parent.parent):
        # a power cut must not lose the way to it
        fsync(above)
    descriptor, known = _open(folder), _held.get(folder.resolve())
    if known is not None and os.path.sameopenfile(known, descriptor):
        os.close(descriptor)
        return
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is(descriptor, folder):
                # who held it had done with it, and removed it
                os.close(descriptor)
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = _open(folder)
                continue
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise UserError(
                    f"{folder}: another process trains this very run and writes its "
                    "checkpoints there; wait for it, or end it"
                ) from None
            time.sleep(POLL_S)
        else:
            _held[folder.resolve()] = descriptor
            return


def _is(descriptor: int, folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    return False


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
