"""A rank ends with the process that started it, however that ended."""

import ctypes
import os
import signal

from minitrain.core.ended import LAUNCHER_PID
from minitrain.core.errors import EXIT_USER

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """From now on the kernel kills this process when its parent is gone, also one that
    is stopped, or holds the GIL for ever. Linux only.
    """
    # told by the launcher: while this process started, its parent may have gone already
    parent = int(os.environ.get(LAUNCHER_PID, os.getppid()))
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_USER)
