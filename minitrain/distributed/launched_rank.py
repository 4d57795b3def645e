"""The body of a process that :func:`minitrain.distributed.launcher.launch` started."""

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import torch

from minitrain.core.errors import UserError
from minitrain.distributed.launcher import end_with_parent
from minitrain.distributed.meeting import STORE


def main() -> None:
    """Receive a function, run it, and send back what became of it."""
    end_with_parent(remove=Path(os.environ[STORE]).parent)
    # Ctrl-C reaches every process of a terminal; the launcher ends its ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    try:
        dtype, fn, args = cloudpickle.loads(pipe.recv_bytes())
        torch.set_default_dtype(dtype)
        answer = cloudpickle.dumps((True, fn(*args)))
    except UserError as error:
        answer = cloudpickle.dumps((False, error))
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
        answer = cloudpickle.dumps((False, (line, traceback.format_exc())))
    pipe.send_bytes(answer)


if __name__ == "__main__":
    main()
