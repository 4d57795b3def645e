"""Run stages or a test of a copy of the project, or a user's script on several ranks.

This is quick: a server has imported torch and other dependencies. It forks a worker
per copy, which imports minitrain from there and forks for every stage; a stage's ranks
are forks too. Only torchrun is replaced in the copy.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ports import free_port
from waiting import GENEROUS_S

ADDRESS = "MINITRAIN_MUTATED"
LIMIT_S = 100
CRASH = 70
# not minitrain: a worker imports it from its copy
SLOW_TO_IMPORT = [
    "cloudpickle",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "psutil",
    "pydantic",
    "pytest",
    "ruamel.yaml",
    "safetensors",
    "torch",
    "torch._dynamo",
    "torch._inductor.config",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "tqdm",
]
# imported once per copy for several stages
OURS = [
    "minitrain.data.shards",
    "minitrain.proof.replay",
    "minitrain.proof.runs",
    "minitrain.proof.witness.examine",
    "minitrain.report.breach",
    "minitrain.train.run",
]
# children of this process that are no leftovers of a test
servers: set[int] = set()
PREPARE = [["corpus"], ["shard"]]
EQUIVALENCE = ["equivalence"]


def of_size(world_size: int) -> list[list[str]]:
    """The stages of a run: train, replay, verify."""
    size = ["--world-size", str(world_size)]
    gloo = ["--backend", "gloo", *size]
    return [["train", *gloo], ["replay", *size], ["verify", *gloo]]


def pipeline(*world_sizes: int) -> list[list[str]]:
    """The stages from the text to the verdict."""
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


class Server:
    """Process that forks workers. Tests of a copy find it by the environment.

    ``prefix`` is put before its command, ``modules`` are imported at its start, and
    its socket is in a new folder in ``inside``.
    """

    def __init__(
        self,
        prefix: Sequence[str] = (),
        python: str | Path = sys.executable,
        modules: Sequence[str] = SLOW_TO_IMPORT,
        inside: str | None = None,
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="minitrain-mutated-", dir=inside)
        self.address = str(Path(self.folder, "socket"))
        self.process = subprocess.Popen(
            [*prefix, python, __file__, self.address, *modules],
            stdin=subprocess.DEVNULL,
            # as of ranks: libraries look at it when they are imported
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        servers.add(self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(GENEROUS_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)
        os.rmdir(self.folder)


def run_stages(address: str, folder: Path, stages: Sequence[Sequence[str]]) -> Outcome:
    """Run ``stages`` (name and arguments) in ``folder`` until one does not end well."""
    return _ask(address, {"folder": str(folder), "stages": list(stages)})


def run_test(address: str, folder: Path, name: str, **variables: str) -> Outcome:
    """Run a test of the copy in ``folder`` with its own minitrain, and with these
    environment variables.
    """
    request = {"folder": str(folder), "test": name, "variables": variables}
    return _ask(address, request)


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
    request = {"folder": str(folder), "script": [*map(str, command)]}
    more = {"world_size": world_size, "environment": dict(variables)}
    return _ask(address, request | more)


def _ask(address: str, request: dict[str, Any]) -> Outcome:
    with socket.socket(socket.AF_UNIX) as ours:
        _connect(ours, address)
        ours.settimeout(LIMIT_S + 20)
        ours.sendall(json.dumps(request).encode() + b"\n")
        # the end comes when the worker and all that it started have gone
        answer = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    lines = answer.decode().splitlines()
    _wait_until_gone(int(lines[0]))
    if len(lines) < 2:
        return Outcome("worker", CRASH, "no answer: it crashed, or took too long")
    return Outcome(**json.loads(lines[1]))


def _connect(ours: socket.socket, address: str) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while True:
        try:
            return ours.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            # it still imports
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def serve(address: str) -> None:
    parent = os.getppid()
    for module in sys.argv[2:]:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    # no zombie processes: the client waits for its worker
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        listening.settimeout(0.5)
        while os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                with connection:
                    if os.fork() == 0:
                        listening.close()
                        _be_a_worker(connection)


def _be_a_worker(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(LIMIT_S)
    try:
        connection.setblocking(True)
        connection.sendall(f"{os.getpid()}\n".encode())
        request = json.loads(connection.makefile().readline())
        os.chdir(request["folder"])
        sys.path[:] = [p for p in sys.path if p != str(Path(__file__).parent)]
        sys.path.insert(0, request["folder"])
        os.environ["PYTHONPATH"] = request["folder"]
        os.environ[ADDRESS] = sys.argv[1]
        os.environ.update(request.get("variables", {}))
        if "script" in request:
            outcome = _script(request)
        else:
            is_test = "test" in request
            outcome = _test(request) if is_test else _stages(request["stages"])
        connection.sendall(json.dumps(outcome.__dict__).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


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
                rank: _fork(lambda r=rank: _script_rank(request, r, port))
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
    for name in OURS if len(stages) > 1 else ():
        # a failing import is reported by the stage that repeats it
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for name, *arguments in stages:
        code, output = _forked(lambda n=name, a=arguments: _stage(n, a))
        if code:
            break
    return Outcome(name, code, output)


def _stage(name: str, arguments: list[str]) -> int:
    return _run_module(f"stages.{name}", arguments)


def _run_module(name: str, arguments: list[str]) -> int:
    sys.argv = [name, *arguments]
    run = runpy.run_module
    return _ended(lambda: run(name, run_name="__main__", alter_sys=True))


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
            pids[rank] = _fork(lambda e=variables: _rank(module, arguments, e))
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


if __name__ == "__main__":
    serve(sys.argv[1])
