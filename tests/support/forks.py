"""Forks that stand for new processes: stages or a test of a copy of the project, the
ranks of a user's script, and ranks of ``launch``.

This is quick: a server has imported torch and other dependencies. It forks a worker
per request. A worker imports minitrain from its copy and forks for every stage; a
stage's ranks are forks too. Only torchrun is replaced in the copy.

    python forks.py ADDRESS -m stages.NAME ...

has the stage run by the server at ADDRESS: it replaces ``stages/python`` in a copy, for
an unchanged DVC.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import secrets
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from ports import free_port
from waiting import GENEROUS_S

ADDRESS = "MINITRAIN_MUTATED"
LIMIT_S = 100
CRASH = 70
PR_SET_CHILD_SUBREAPER = 36
# what torch imports when a model is first wrapped or sharded
OF_TORCH = [
    "torch._dynamo",
    "torch._inductor.config",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
]
# not minitrain: a worker imports it from its copy
FOR_STAGES = [
    *OF_TORCH,
    *("cloudpickle", "matplotlib.backends.backend_agg", "matplotlib.figure"),
    *("pandas", "psutil", "pydantic", "pytest", "ruamel.yaml", "safetensors", "tqdm"),
]
FOR_RANKS = ["minitrain.train.run", "minitrain.check.data_parallel", *OF_TORCH]
# children of this process that are no leftovers of a test
servers: set[int] = set()
PREPARE = [["corpus"], ["shard"]]
EQUIVALENCE = ["equivalence"]


def of_size(world_size: int) -> list[list[str]]:
    size = ["--world-size", str(world_size)]
    gloo = ["--backend", "gloo", *size]
    return [["train", *gloo], ["replay", *size], ["verify", *gloo]]


def pipeline(*world_sizes: int) -> list[list[str]]:
    by_stage = zip(*map(of_size, world_sizes), strict=True)
    return [*PREPARE, *(s for stages in by_stage for s in stages), EQUIVALENCE]


TRAIN_2, REPLAY_2, VERIFY_2 = of_size(2)
PIPELINE = pipeline(1, 2)


@dataclass(frozen=True)
class Outcome:
    """The last stage (or test) that ran, its exit code, and all output."""

    place: str
    code: int
    output: str

    @property
    def line(self) -> str:
        """The first line of error: a failed rank's comes before its launcher's."""
        lines = self.output.splitlines()
        return next((line for line in lines if line.startswith("error: ")), "")


class Forked:
    """A rank; the subset of subprocess.Popen that the launcher uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Server:
    """Process that forks workers. Tests of a copy find it by the environment.

    ``prefix`` is put before its command, ``modules`` are imported at its start. Its
    address is an abstract one, which no file is needed for.
    """

    def __init__(
        self,
        modules: Sequence[str] = FOR_STAGES,
        prefix: Sequence[str] = (),
        python: str | Path = sys.executable,
    ) -> None:
        self.address = f"minitrain-forks-{secrets.token_hex(8)}"
        self.process = subprocess.Popen(
            [*prefix, python, __file__, self.address, *modules],
            stdin=subprocess.DEVNULL,
            # as of ranks: libraries look at it when they are imported
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        servers.add(self.process.pid)

    def fork(self, environment: Mapping[str, str]) -> Forked:
        """Start a rank that is a child of this process: what ``launcher._start`` does,
        without a new interpreter.
        """
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        variables = {**os.environ, **environment, "PYTHONPATH": path}
        request = {"folder": os.getcwd(), "rank": variables}
        prctl = ctypes.CDLL(None).prctl
        # orphans become children of this process, as soon as the worker is gone
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            return Forked(int(_ask(self.address, request)))
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(GENEROUS_S)


def run_stages(address: str, folder: Path, stages: Sequence[Sequence[str]]) -> Outcome:
    """Run ``stages`` (name and arguments) in ``folder`` until one does not end well."""
    return _outcome(address, folder, stages=[*stages])


def stages_in_forks(folder: Path, address: str) -> None:
    """Have the stages that DVC starts in the copy of the project in ``folder`` run by
    the server at ``address``.
    """
    command = shlex.join((sys.executable, __file__, address))
    (folder / "stages/python").write_text(f'#!/bin/sh\nexec {command} "$@"\n')


def run_test(address: str, folder: Path, name: str, **variables: str) -> Outcome:
    """Run a test of the copy in ``folder`` with its own minitrain, and with these
    environment variables.
    """
    return _outcome(address, folder, test=name, variables=variables)


def run_script(
    address: str,
    command: Sequence[str | Path],
    world_size: int,
    folder: Path,
    variables: Mapping[str, str],
) -> Outcome:
    """Run a script and its arguments in ``folder`` by so many ranks, with nothing but
    these environment variables and those that torchrun sets.
    """
    more = {"world_size": world_size, "environment": dict(variables)}
    return _outcome(address, folder, script=[*map(str, command)], **more)


def _outcome(address: str, folder: Path, **request: Any) -> Outcome:
    answer = _ask(address, {"folder": str(folder), **request})
    if not answer:
        return Outcome("worker", CRASH, "no answer: it crashed, or took too long")
    return Outcome(**json.loads(answer))


def _ask(address: str, request: dict[str, Any]) -> str:
    with socket.socket(socket.AF_UNIX) as ours:
        _connect(ours, address)
        ours.settimeout(LIMIT_S + 20)
        ours.sendall(json.dumps(request).encode() + b"\n")
        # the end comes when the worker and all that it started have gone
        answer = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    worker, _, answer = answer.decode().partition("\n")
    deadline = time.monotonic() + GENEROUS_S
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    return answer


def _connect(ours: socket.socket, address: str) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while True:
        try:
            return ours.connect(f"\0{address}")
        except ConnectionRefusedError:
            # it still imports
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)


def serve(address: str, *modules: str) -> None:
    parent = os.getppid()
    # any user of the machine can connect
    users = {0, os.getuid(), int(os.environ.get("SUDO_UID", 0))}
    for module in modules:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    # no zombie processes: the client waits for its worker
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{address}")
        listening.listen()
        listening.settimeout(0.5)
        while os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                with connection:
                    if user_of(connection) in users and os.fork() == 0:
                        listening.close()
                        _be_a_worker(connection, address)


def user_of(connection: socket.socket) -> int:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", found)[1])


def _be_a_worker(connection: socket.socket, address: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        connection.setblocking(True)
        connection.sendall(f"{os.getpid()}\n".encode())
        request = json.loads(connection.makefile().readline())
        os.chdir(request["folder"])
        if "rank" in request:
            answer = str(_fork(lambda: _launched_rank(connection, request["rank"])))
        else:
            answer = json.dumps(_worked(request, address).__dict__)
        connection.sendall(answer.encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _launched_rank(connection: socket.socket, variables: dict[str, str]) -> int:
    from minitrain.harness.rank import main

    connection.close()
    # until orphaned, its parent is the worker
    deadline = time.monotonic() + GENEROUS_S
    while os.getppid() != int(variables["MINITRAIN_LAUNCHER_PID"]):
        assert time.monotonic() < deadline, "who asked for this rank has gone"
        os.sched_yield()
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = variables["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["rank"]
    main()
    return 0


def _worked(request: dict[str, Any], address: str) -> Outcome:
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(LIMIT_S)
    sys.path[:] = [p for p in sys.path if p != str(Path(__file__).parent)]
    sys.path.insert(0, request["folder"])
    os.environ["PYTHONPATH"] = request["folder"]
    os.environ[ADDRESS] = address
    os.environ.update(request.get("variables", {}))
    if "script" in request:
        return _script(request)
    return _test(request) if "test" in request else _stages(request["stages"])


def _test(request: dict[str, Any]) -> Outcome:
    import pytest

    name = request["test"]
    base = f"--basetemp={request['folder']}/../tmp-of-tests"
    options = ["-p", "no:cacheprovider", "-x", "-q", "--tb=short", base, name]
    code, output = _forked(lambda: int(pytest.main(options)))
    return Outcome(name, code, output)


def _script(request: dict[str, Any]) -> Outcome:
    script = request["script"][0]
    port = free_port()

    def run_ranks() -> int:
        codes = _wait_for_all(
            {
                rank: _fork(partial(_script_rank, request, rank, port))
                for rank in range(request["world_size"])
            }
        )
        return next((code for code in codes.values() if code), 0)

    return Outcome(script, *_forked(run_ranks))


def _script_rank(request: dict[str, Any], rank: int, port: int) -> int:
    os.environ.clear()
    os.environ.update(request["environment"])
    world_size = request["world_size"]
    # a plain script has none
    if world_size > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            GROUP_RANK="0",
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_RUN_ID="forked",
        )
    sys.argv = request["script"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        return _ended(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
    finally:
        # as a Python ends
        threading._shutdown()
        atexit._run_exitfuncs()


def _stages(stages: Sequence[Sequence[str]]) -> Outcome:
    module = importlib.import_module("minitrain.harness.launcher")
    # before others import it from there
    module.torchrun = _launch
    for name in [f"stages.{one[0]}" for one in stages]:
        # what stages import is imported once; one that fails is reported by its stage
        with contextlib.suppress(Exception):
            importlib.import_module(name)
        sys.modules.pop(name, None)
    for name, *arguments in stages:
        code, output = _forked(partial(_run_module, f"stages.{name}", arguments))
        if code:
            break
    return Outcome(name, code, output)


def _run_module(name: str, arguments: list[str]) -> int:
    sys.argv = [name, *arguments]
    return _ended(partial(runpy.run_module, name, None, "__main__", alter_sys=True))


def _ended(run: Callable[[], object]) -> int:
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        # of the project's own exceptions, each stage makes a line
        traceback.print_exc()
        return CRASH
    return 0


def _launch(
    module: str,
    arguments: list[str],
    world_size: int,
    *,
    threads_per_process: int,
    rendezvous: None = None,
) -> None:
    """Do what ``harness.launcher.torchrun`` does, with forks for processes."""
    assert rendezvous is None
    from minitrain.harness.failures import failures_of, root_cause
    from minitrain.harness.launcher import rank_environment
    from minitrain.harness.run_dir import private_folder

    with private_folder() as folder:
        pids = {}
        for rank in range(world_size):
            variables = rank_environment(rank, world_size, folder)
            pids[rank] = _fork(partial(_rank, module, arguments, variables))
        codes = _wait_for_all(pids)
        cause = root_cause(failures_of(folder, pids, codes))
    if cause is not None:
        raise cause


def _wait_for_all(pids: Mapping[int, int]) -> dict[int, int]:
    codes = {}
    running = {pid: rank for rank, pid in pids.items()}
    while running:
        pid, status = os.wait()
        codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        # the others would wait for it in vain
        for other in running if any(codes.values()) else ():
            os.kill(other, signal.SIGKILL)
    return codes


def _rank(module: str, arguments: list[str], variables: dict[str, str]) -> int:
    os.environ.update(variables, TORCHELASTIC_RUN_ID="forked")
    return _run_module(module, arguments)


def _forked(body: Callable[[], int]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        _, status = os.waitpid(_fork(body, output), 0)
        output.seek(0)
        printed = output.read().decode(errors="replace")
        return os.waitstatus_to_exitcode(status), printed


def _fork(body: Callable[[], int], output: IO[bytes] | None = None) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = CRASH
    try:
        if output is not None:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(address: str, *words: str) -> None:
    if words[0] != "-m":
        return serve(address, *words)
    stage = [words[1].removeprefix("stages."), *words[2:]]
    outcome = run_stages(address, Path.cwd(), [stage])
    print(outcome.output, end="", flush=True)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main(*sys.argv[1:])
