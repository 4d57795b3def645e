"""The loops of examples/ without a new Python for each rank, which would import torch
and a framework for seconds.

    python forked_loops.py MODULE ...

has imported these modules. A line that it reads asks for a run, whose ranks are forks
with the variables that torchrun sets; a line that it writes says how it ended.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ports import free_port
from waiting import GENEROUS_S

# what torch imports as soon as there is an optimizer is slow, too
MODULES = ("torch._dynamo", "minitrain")


class ForkedLoops:
    """The process that forks ranks; they find these ``modules`` imported."""

    def __init__(self, python: Path, modules: Sequence[str], root: Path) -> None:
        self.process = subprocess.Popen(
            [python, __file__, *MODULES, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # as of ranks: libraries look at it when they are imported
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            cwd=root,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        command: Sequence[str | Path],
        world_size: int,
        folder: Path,
        environment: Mapping[str, str],
        said: Path,
    ) -> int:
        """The exit code of a script and its arguments, run in ``folder``; what all its
        ranks print goes to ``said``.
        """
        request = {
            "command": [*map(str, command)],
            "world_size": world_size,
            "folder": str(folder),
            "environment": dict(environment),
            "said": str(said),
        }
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def stop(self) -> None:
        try:
            self.process.communicate(timeout=GENEROUS_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Its ranks, too, which are in its session."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def serve() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(run_ranks(json.loads(line)), flush=True)


def run_ranks(request: dict[str, Any]) -> int:
    """One that fails ends the others."""
    world_size = request["world_size"]
    port = free_port()
    ranks = {fork_rank(request, rank, port) for rank in range(world_size)}
    code = 0
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        code = code or os.waitstatus_to_exitcode(status)
        for other in ranks if code else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
    return code


def variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """As torchrun sets them; a plain script has none."""
    if world_size == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "forked",
    }


def fork_rank(request: dict[str, Any], rank: int, port: int) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        script, *arguments = request["command"]
        os.environ.clear()
        os.environ.update(request["environment"])
        os.environ.update(variables(rank, request["world_size"], port))
        os.chdir(request["folder"])
        said = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = [script, *arguments]
        sys.path[0] = str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        # as a Python ends
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
    # not one module after the other
    os._exit(0)
