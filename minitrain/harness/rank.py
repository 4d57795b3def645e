"""Setup and teardown of a rank, for both launchers.

:func:`minitrain.harness.launcher.launch` runs this module with ``python -m``.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import torch

from minitrain.comm import heartbeat
from minitrain.comm.store import our_store
from minitrain.core.errors import EXIT_USER, RankError
from minitrain.core.files import writing
from minitrain.core.printable import print_note
from minitrain.core.signals import end_with_launcher
from minitrain.harness import stack_dump as stack
from minitrain.harness.failures import GAVE_UP, LOST, failure_by, write_report

# file in the run's folder with the pickled function and arguments
PAYLOAD = "payload"
# delay before exit: a rank that lost a peer exits after it, so that the launcher sees
# the cause first; one that timed out is killed once the launcher has found the cause
PAUSES_S = {LOST: 0.5, GAVE_UP: 3.0}


@contextmanager
def as_rank() -> Iterator[Path | None]:
    """Context manager: set up this process as a rank, and yield the folder of the run.

    The rank exits with its launcher, writes a heartbeat, dumps its stack on request,
    and reports exceptions. If another program, such as the user's torchrun, started the
    process, it only exits with its parent, and None is yielded.
    """
    end_with_launcher()
    store = our_store()
    if store is None:
        yield None
        return
    # Ctrl-C reaches every process of a terminal; the launcher terminates its ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # with these, torch would serve a TCP store on every interface
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    folder, rank = store.parent, int(os.environ["RANK"])
    stack.answer_in(heartbeat.file_of(folder, rank, "stack"))
    # last: the launcher requests stack dumps only once the heartbeat exists
    place = heartbeat.make_place(heartbeat.file_of(folder, rank))
    try:
        yield folder
    except (Exception, SystemExit) as error:
        failure = failure_by(error, rank, os.getpid(), place.look())
        try:
            write_report(folder, rank, failure)
        except OSError as why:
            # for example, disk full
            print_note(f"{failure} (not reported: {why})")
        if isinstance(failure, RankError):
            time.sleep(PAUSES_S.get(failure.kind, 0.0))
        exit_now(EXIT_USER)
    place.enter("end")


def exit_now(code: int) -> NoReturn:
    """Flush stdout and stderr and exit with ``code``, without Python's cleanup, which
    could hang in a process group that lost a rank.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class WorkingFolder(MetaPathFinder):
    """Finder, the last in ``sys.meta_path``, for modules in the working folder: a
    caller may have imported one by its path, as pytest does in ``importlib`` mode.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        """Return the spec of a top-level module in the working folder, else None."""
        return PathFinder.find_spec(name, [os.getcwd()]) if path is None else None


def main() -> None:
    """Run the function passed to :func:`~minitrain.harness.launcher.launch`."""
    with as_rank() as folder:
        assert folder is not None
        sys.meta_path.append(WorkingFolder())
        dtype, fn, args = cloudpickle.loads((folder / PAYLOAD).read_bytes())
        torch.set_default_dtype(dtype)
        result = cloudpickle.dumps(fn(*args))
        file = folder / f"result-{os.environ['RANK']}"
        with writing(file):
            file.write_bytes(result)
    exit_now(0)


if __name__ == "__main__":
    main()
