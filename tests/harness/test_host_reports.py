"""For how long a host listens for what the others tell."""

import json
import threading
import time

import pytest
import torch.distributed as dist
from waiting import GENEROUS_S

from minitrain.comm.torch_private import HashStore, Store
from minitrain.harness.host_reports import Told, hear

ERROR = {"line": "rank 1: a bug", "mistake": False}
NAMES = {"host 1": "host 1 (a)", "host 2": "host 2 (b)"}


def timed(store: Store, within_s: float, after_error_s: float) -> tuple[Told, float]:
    """What hosts 1 and 2 tell, and after how many seconds."""
    began = time.monotonic()
    told: Told = {}
    hear(store, NAMES, told, within_s, after_error_s)
    return told, time.monotonic() - began


def test_who_says_nothing_is_left_out_in_the_end() -> None:
    store = HashStore()
    store.set("host 1", "{}")
    told, took_s = timed(store, 0.5, 0)
    assert told == {"host 1": {}}
    assert took_s >= 0.5


def test_all_that_told_are_waited_for_no_longer() -> None:
    store = HashStore()
    store.set("host 1", "{}")
    late = threading.Timer(0.3, store.set, ["host 2", json.dumps(ERROR)])
    late.start()
    told, took_s = timed(store, 60, 60)
    late.join()
    assert told == {"host 1": {}, "host 2": ERROR}
    assert 0.3 <= took_s < GENEROUS_S


def test_after_an_error_the_others_have_little_time() -> None:
    """They end of it, so that who is silent then is lost."""
    store = HashStore()
    store.set("host 1", json.dumps(ERROR))
    told, took_s = timed(store, 60, 0.5)
    assert told == {"host 1": ERROR}
    assert 0.5 <= took_s < GENEROUS_S


def test_what_was_heard_before_the_store_is_lost_is_kept() -> None:
    class Lost(HashStore):
        def check(self, keys: list[str]) -> bool:
            if keys == ["host 2"]:
                raise dist.DistNetworkError("closed by peer")
            return bool(super().check(keys))

    store, told = Lost(), {}
    store.set("host 1", json.dumps(ERROR))
    with pytest.raises(dist.DistNetworkError):
        hear(store, NAMES, told, 60, 60)
    assert told == {"host 1": ERROR}


def test_who_waits_for_long_says_once_for_whom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("minitrain.harness.host_reports.SAY_S", 0.2)
    store = HashStore()
    store.set("host 1", "{}")
    timed(store, 1.45, 0)
    assert capsys.readouterr().err == "waiting for host 2 (b), 1 s at most\n"
