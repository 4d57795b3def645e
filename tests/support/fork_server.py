"""Ranks for tests by forking: a process that has imported torch once starts them all.

A rank that imports torch takes two seconds to begin, and tests start hundreds. Those
of the launcher itself start real ones (``pytestmark = pytest.mark.real_launch``).
"""

import ctypes
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress

from waiting import GENEROUS_S

PR_SET_CHILD_SUBREAPER = 36
LIMIT = 1 << 20
# the library, and what torch imports when a model is first wrapped or sharded
SLOW_TO_IMPORT = [
    "minitrain.train.run",
    "minitrain.check.data_parallel",
    "torch._dynamo",
    "torch._inductor.config",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
]


class Forked:
    """The subset of subprocess.Popen that the launcher uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkServer:
    """The process that forks; ended with :meth:`stop`.

    ``more``: modules that it imports besides :data:`SLOW_TO_IMPORT`.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *more],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def fork(self, environment: Mapping[str, str]) -> Forked:
        """Start a rank that is a child of this process: what ``launcher._start`` does,
        without a new interpreter.
        """
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        everything = {**os.environ, **environment, "PYTHONPATH": path}
        request = pickle.dumps((everything, os.getcwd()))
        with subreaper():
            self._socket.send(request)
            pid = int(self._socket.recv(LIMIT))
            # only now is the one between us gone, and the rank ours
            self._socket.recv(LIMIT)
        return Forked(pid)

    def stop(self) -> None:
        self._socket.close()
        self.process.wait(GENEROUS_S)


@contextmanager
def subreaper():
    """Orphans become children of this process."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def main() -> None:
    for module in [*SLOW_TO_IMPORT, *sys.argv[2:]]:
        importlib.import_module(module)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message = requests.recv(LIMIT)
        if not message:
            return
        child = os.fork()
        if child == 0:
            be_a_rank(requests, message)
        os.waitpid(child, 0)
        requests.send(b"orphaned")


def be_a_rank(requests: socket.socket, message: bytes) -> None:
    """Fork once more, so that the rank becomes a child of who asked for it."""
    rank = os.fork()
    if rank:
        requests.send(str(rank).encode())
        os._exit(0)
    code = 1
    try:
        from minitrain.harness.rank import main as run

        requests.close()
        environment, folder = pickle.loads(message)
        # until orphaned, the parent is the one that forked
        deadline = time.monotonic() + GENEROUS_S
        while os.getppid() != int(environment["MINITRAIN_LAUNCHER_PID"]):
            assert time.monotonic() < deadline, "who asked for this rank has gone"
            os.sched_yield()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = environment["PYTHONPATH"].split(os.pathsep)
        sys.argv = ["rank"]
        run()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
