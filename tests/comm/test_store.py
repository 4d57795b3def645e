"""Where ranks meet: in a file of our launcher's folder, and nowhere else by mistake."""

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from minitrain.comm import groups as ddp
from minitrain.comm.store import (
    LAUNCHER_PID,
    STORE,
    interfaces,
    meet,
    names_of_a_rank,
    our_store,
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


def test_variable_of_another_process_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE, str(tmp_path / "ranks"))
    assert our_store() is None
    assert "MASTER_ADDR" in names_of_a_rank()
    monkeypatch.setenv(LAUNCHER_PID, str(os.getppid()))
    assert our_store() == tmp_path / "ranks"
    assert names_of_a_rank() == ("RANK", "WORLD_SIZE")


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


def test_interfaces_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is told by each who would use it."""
    for name in ("lo", "lo,lo"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert interfaces() == name
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    said = "^environment: GLOO_SOCKET_IFNAME = 'eth7': must be one of .*lo"
    with pytest.raises(UserError, match=said):
        ddp.init_distributed()
    with pytest.raises(UserError, match=said):
        launch(os.getpid, 1)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert interfaces().startswith("lo")

    def unreachable(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(UserError, match="no loopback interface is up"):
        interfaces()
