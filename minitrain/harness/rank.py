"""Setup and teardown of a rank, for both launchers.

As a module of its own (``python -m``) it is a process of
:func:`minitrain.harness.launcher.launch`.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import cloudpickle
import torch

from minitrain.comm import heartbeat
from minitrain.comm.store import our_store
from minitrain.core.errors import EXIT_USER, RankError
from minitrain.core.files import writing
from minitrain.core.printable import note
from minitrain.core.signals import end_with_launcher
from minitrain.harness import stack_dump as stack
from minitrain.harness.failures import (
    GAVE_UP,
    LEFT,
    LOST,
    Failure,
    failure_by,
    write_report,
)

# what the function and its arguments are in, in the folder of the run
PAYLOAD = "payload"
# a rank that lost a peer exits after it, so that the launcher sees the cause first; one
# that gave up is ended as soon as the launcher has looked for the one that is missing
PAUSES_S = {LEFT: 0.5, LOST: 0.5, GAVE_UP: 3.0}


@contextmanager
def as_rank() -> Iterator[Path | None]:
    """Set up and end a rank around its body -> the folder of its run. It ends with its
    launcher, has a heartbeat, dumps its stack when asked, keeps from the terminal what
    C++ prints, and reports an exception. None of it but the first in a rank that our
    launchers did not start.
    """
    end_with_launcher()
    store = our_store()
    if store is None:
        yield None
        return
    # Ctrl-C reaches every process of a terminal; the launcher ends its ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # a rank that joins by these would serve a TCP store on every interface
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    folder, rank = store.parent, os.environ["RANK"]
    stack.keep_native_words(heartbeat.file_of(folder, rank, "words"))
    stack.answer_in(heartbeat.file_of(folder, rank, "stack"))
    # last: from then on the request for a stack dump does not end this rank
    place = heartbeat.make_place(heartbeat.file_of(folder, rank))
    try:
        yield folder
    except (Exception, SystemExit) as error:
        _fail(folder, failure_by(error, int(rank), os.getpid(), place.look()))
    place.enter("end")


def _fail(folder: Path, failure: Failure) -> NoReturn:
    try:
        write_report(folder, int(os.environ["RANK"]), failure)
    except OSError as why:
        # as where a disk is full
        note(f"{failure} (not reported: {why})")
    if isinstance(failure, RankError):
        time.sleep(PAUSES_S.get(failure.kind, 0.0))
    exit_now(EXIT_USER)


def exit_now(code: int) -> NoReturn:
    """Exit without clean-up, in which a process group that lost a rank may wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Run the function that :func:`~minitrain.harness.launcher.launch` was given."""
    with as_rank() as folder:
        assert folder is not None
        dtype, fn, args = cloudpickle.loads((folder / PAYLOAD).read_bytes())
        torch.set_default_dtype(dtype)
        result = cloudpickle.dumps(fn(*args))
        file = folder / f"result-{os.environ['RANK']}"
        with writing(file):
            file.write_bytes(result)
    exit_now(0)


if __name__ == "__main__":
    main()
