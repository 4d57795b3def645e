"""Where ranks meet: in a file of our launcher's folder, and nowhere else by mistake."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from waiting import GENEROUS_S

from minitrain.comm import groups as ddp
from minitrain.comm.store import (
    LAUNCHER_PID,
    STORE,
    loopback_interface,
    meet,
    names_of_a_rank,
    our_store,
    require_free_port,
    store_at,
)
from minitrain.core.errors import UserError
from minitrain.harness.launcher import launch

JOINS = 100


def join_often() -> int:
    for _ in range(JOINS):
        with ddp.distributed(timeout_s=60):
            ddp.barrier()
    return JOINS


def test_ranks_join_and_leave_many_times() -> None:
    """In one file for all, who was late found it deleted by who had left."""
    assert launch(join_often, 2) == [JOINS, JOINS]


def without_the_folder() -> str:
    store = our_store()
    os.environ[STORE] = str(store.parent / "gone" / store.name)
    with pytest.raises(UserError) as caught:
        ddp.init_distributed(timeout_s=5)
    return str(caught.value).removeprefix(str(store.parent))


def test_folder_that_has_gone_is_one_line_at_once() -> None:
    (line,) = launch(without_the_folder, 1, timeout_s=GENEROUS_S)
    assert line == "/gone: the folder where ranks meet has gone"


def test_variable_of_another_process_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE, str(tmp_path / "ranks"))
    assert our_store() is None
    assert "MASTER_ADDR" in names_of_a_rank()
    monkeypatch.setenv(LAUNCHER_PID, str(os.getppid()))
    assert our_store() == tmp_path / "ranks"
    assert names_of_a_rank() == ("RANK", "WORLD_SIZE")


INNER = """
import torch
import torch.distributed as dist
from minitrain.ddp import distributed

with distributed(timeout_s=60) as (rank, world_size):
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(f"inner {world_size} {ones.item():g}\\n", end="", flush=True)
"""


def torchrun_of_its_own(folder: Path) -> str:
    with ddp.distributed() as (rank, _):
        if rank:
            ddp.barrier()
            return ""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", f"--log-dir={folder}"]
        command.append(str(folder / "inner.py"))
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GENEROUS_S
        )
        ddp.barrier()
        return done.stdout or done.stderr


def test_torchrun_inside_a_rank_meets_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(textwrap.dedent(INNER))
    assert launch(torchrun_of_its_own, 2, tmp_path)[0] == "inner 2 2\n" * 2


def test_every_call_gives_a_store_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {STORE: str(tmp_path / "ranks"), LAUNCHER_PID: str(os.getppid())}
    for name, value in {**names, "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    first, *_ = meet(timedelta(seconds=5))
    first.set("left", "here")
    second, *_ = meet(timedelta(seconds=5))
    assert first.check(["left"])
    assert not second.check(["left"])


def test_loopback_that_is_down_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback_interface().startswith("lo")

    def unreachable(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(UserError, match="no loopback interface is up"):
        loopback_interface()


def test_interface_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("lo", "lo,lo"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        with ddp.distributed():
            pass
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    said = "^environment: GLOO_SOCKET_IFNAME = 'eth7': must be one of .*lo"
    with pytest.raises(UserError, match=said):
        ddp.init_distributed()
    with pytest.raises(UserError, match=said):
        launch(os.getpid, 1)


def test_master_port_must_be_a_free_port(taken_port: str) -> None:
    said = dict.fromkeys(["0", "65536", "-1", "http", ""], "a port from 1 to 65535")
    for port, line in {**said, taken_port: "is in use"}.items():
        with pytest.raises(UserError, match=f"MASTER_PORT = .*{port}.* {line}"):
            require_free_port(port)


SERVES = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(60)
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A store in a process of its own, which says its port."""
    command = [sys.executable, "-c", SERVES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.kill()


def test_store_that_stops_to_answer_is_lost_within_the_limit(
    server: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the call did not return, as where a host vanishes."""
    monkeypatch.setattr("minitrain.comm.store.SILENT_S", 0.5)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    # as other parts of a process may have: it has no address
    one, other = socket.socketpair()
    with one, other:
        store = store_at("127.0.0.1", port, timedelta(seconds=1))
    # to wait for long is not to be lost
    with pytest.raises(dist.DistStoreError):
        store.wait(["nothing"], timedelta(seconds=3))
    assert not store.check(["nothing"])
    server.send_signal(signal.SIGSTOP)
    while psutil.Process(server.pid).status() != psutil.STATUS_STOPPED:
        # until then it may answer
        time.sleep(0.01)
    began = time.monotonic()
    with pytest.raises(dist.DistNetworkError):
        store.check(["nothing"])
    assert 1 < time.monotonic() - began < GENEROUS_S
