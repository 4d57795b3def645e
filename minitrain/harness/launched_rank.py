"""The body of a process that :func:`minitrain.harness.launcher.launch` started."""

import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection

import cloudpickle
import torch

from minitrain.core.errors import UserError
from minitrain.core.signals import end_with_launcher
from minitrain.harness.rank_setup import leave, take_a_seat


def main() -> None:
    """Receive a function, run it, and send back what became of it."""
    end_with_launcher()
    # Ctrl-C reaches every process of a terminal; the launcher ends its ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place = take_a_seat()
    pipe: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    try:
        dtype, fn, args = cloudpickle.loads(pipe.recv_bytes())
        torch.set_default_dtype(dtype)
        answer = cloudpickle.dumps((True, fn(*args)))
        place.enter("end")
    except UserError as error:
        answer = cloudpickle.dumps((False, error))
    except BaseException as error:
        time.sleep(leave(place, error))
        line = f"{type(error).__name__}: {error}"
        answer = cloudpickle.dumps((False, (line, traceback.format_exc())))
    pipe.send_bytes(answer)


if __name__ == "__main__":
    main()
