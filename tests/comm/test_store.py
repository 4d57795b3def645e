"""The ranks' store: in a file of our launcher's folder; facts that must be equal."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from minitrain.comm import groups as ddp
from minitrain.comm.store import (
    LAUNCHER_PID,
    STORE,
    interfaces,
    meet,
    names_of_a_rank,
    our_store,
    require_same,
)
from minitrain.comm.torch_private import HashStore
from minitrain.core.errors import UserError
from minitrain.harness.launcher import launch


def test_variable_of_another_process_is_not_ours(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(STORE, str(tmp_path / "ranks"))
    assert our_store() is None
    assert "MASTER_ADDR" in names_of_a_rank()
    monkeypatch.setenv(LAUNCHER_PID, str(os.getppid()))
    assert our_store() == tmp_path / "ranks"
    assert names_of_a_rank() == ("RANK", "WORLD_SIZE")


def test_every_call_gives_a_store_of_its_own(tmp_path: Path, monkeypatch) -> None:
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


def outcomes(everyone: list[dict[str, Any]]) -> list[str]:
    """What each rank is told, empty where it may begin."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))

    def be(rank: int) -> str:
        try:
            require_same(store, rank, len(everyone), everyone[rank])
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(everyone)) as threads:
        return list(threads.map(be, range(len(everyone))))


FACTS = {"torch": "2.13.0", "samples": "a" * 64, "train.num_steps": 100}


def test_difference_is_told_to_all_with_its_host() -> None:
    for odd, told in (
        ({**FACTS, "torch": "2.12.0"}, "torch = '2.12.0', but '2.13.0' on host"),
        ({**FACTS, "samples": "b" * 64}, "samples = 'bbbbbbbbbbbbbbb..., but 'aaaa"),
        ({**FACTS, "more": 1}, "more = 1, but None on host"),
        ({"torch": "2.13.0", "train.num_steps": 100}, "samples = None, but 'aaaa"),
    ):
        line, *others = outcomes([FACTS, FACTS, odd])
        assert others == [line] * 2
        assert line.startswith("host ")
        assert "(rank 2): " in line
        assert "(rank 0)" in line
        assert told in line
