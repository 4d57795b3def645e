"""Hosts come together, reach each other, and tell each other what went wrong."""

import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ipv6 import require_ipv6
from ports import free_port
from waiting import GENEROUS_S

from minitrain.comm.interfaces import Interface
from minitrain.comm.torch_private import HashStore, TCPStore
from minitrain.core.errors import RankError, UserError
from minitrain.harness import host_rendezvous as module
from minitrain.harness.host_rendezvous import Gathering, Known, gathered
from minitrain.harness.hosts import Hosts

LOOPBACK = Interface("lo", "127.0.0.1")
Body = Callable[[Gathering], Any]


def meet(
    count: int, body: Body, numbers: list[int], timeout_s: float = 20
) -> list[Any]:
    """What ``body`` gives on each host, or the line that ends it there."""
    return meet_as([(count, 12)] * len(numbers), body, numbers, timeout_s)


def meet_as(
    sizes: list[tuple[int, int]],
    body: Body,
    numbers: list[int],
    timeout_s: float = 20,
    address: str = "127.0.0.1",
) -> list[Any]:
    """The same where each is told how many hosts and ranks there are."""
    port = free_port()

    def be(number: int, size: tuple[int, int]) -> Any:
        hosts = Hosts(size[0], address, port, LOOPBACK, number)
        try:
            with gathered(hosts, timeout_s, size[1]) as gathering:
                return body(gathering)
        except (UserError, RankError) as error:
            return str(error)

    with ThreadPoolExecutor(len(numbers)) as threads:
        return list(threads.map(be, numbers, sizes))


def test_hosts_know_each_other() -> None:
    def numbers(gathering: Gathering) -> list[int]:
        return [one.number for one in gathering.everyone]

    # each host names itself first
    assert meet(3, numbers, [0, 1, 2]) == [[0, 1, 2], [1, 0, 2], [2, 0, 1]]


def test_endpoint_may_be_of_another_family_than_gloo() -> None:
    """Before: Address family for hostname not supported."""
    require_ipv6()
    sizes = [(2, 2), (2, 2)]
    assert meet_as(sizes, lambda _: "met", [0, 1], address="::1") == ["met", "met"]


def test_missing_host_is_told_with_those_that_came() -> None:
    first, second = meet(3, lambda _: "met", [0, 1], timeout_s=2)
    assert "waited 2 s for 3 hosts: only host 0 (" in first
    assert "), host 1 (" in first
    assert second == first


@pytest.mark.parametrize(
    ("sizes", "option", "other", "first"),
    [
        ([(2, 2), (2, 4)], "--world-size", 4, 2),
        ([(3, 6), (2, 6)], "--nnodes", 2, 3),
        ([(2, 6), (3, 6)], "--nnodes", 3, 2),
    ],
)
def test_unlike_sizes_are_told_on_both_hosts_at_once(
    sizes: list[tuple[int, int]], option: str, other: int, first: int
) -> None:
    """Before, two timeouts, or an environment that did not fit."""
    here, there = meet_as(sizes, lambda _: "met", [0, 1])
    assert here == there
    assert here.startswith(f"{option} = {other} on host 1 (")
    assert f"), but {first} on host 0 (" in here


def test_store_of_another_is_told() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        port = door.getsockname()[1]
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=door.detach(),
        )
        hosts = Hosts(2, "127.0.0.1", port, LOOPBACK, 1)
        with (
            pytest.raises(UserError, match="is no run of minitrain"),
            gathered(hosts, 1, 2),
        ):
            pass
        del store


def test_one_host_too_many_is_told() -> None:
    lines = meet(2, lambda _: "met", [0, 1, 1])
    assert sorted(lines)[1:] == ["met", "met"]
    assert "all 2 hosts of the run are there, and this is one more" in sorted(lines)[0]


def test_nobody_serves() -> None:
    (line,) = meet(2, lambda _: "met", [1], timeout_s=1)
    assert "no answer within 1 s (Connection refused)" in line


def test_port_that_is_taken_is_told(taken_port: str) -> None:
    hosts = Hosts(2, "127.0.0.1", int(taken_port), LOOPBACK, 0)
    with (
        pytest.raises(UserError, match="Address already in use"),
        gathered(hosts, 1, 2),
    ):
        pass


def test_host_that_is_not_reached_is_told_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = socket.create_connection
    stranger = threading.local()

    def blocked(address: tuple[str, int], *arguments: Any) -> socket.socket:
        if getattr(stranger, "met", False) and stranger.port != address[1]:
            raise TimeoutError("timed out")
        stranger.met, stranger.port = True, address[1]
        return connect(address, *arguments)

    monkeypatch.setattr(socket, "create_connection", blocked)
    lines = meet(2, lambda _: "met", [0, 1], timeout_s=5)
    assert len(set(lines)) == 1
    assert "does not reach host 0 (" in lines[0]
    assert "by its interface lo: timed out" in lines[0]


def test_mistake_on_one_host_is_raised_on_all() -> None:
    def preflight(number: int) -> None:
        if number == 1:
            raise UserError("train.x = 3: must be 2")

    def body(gathering: Gathering) -> None:
        gathering.everywhere(lambda: preflight(gathering.everyone[0].number))

    first, second = meet(2, body, [0, 1])
    assert first.startswith("host 1 (")
    assert first.endswith("): train.x = 3: must be 2")
    assert second == "train.x = 3: must be 2"


def test_missing_file_on_one_host_is_raised_on_all() -> None:
    def body(gathering: Gathering) -> None:
        here = gathering.everyone[0].number == 0
        gathering.everywhere(lambda: None if here else Path("/no/such").stat())

    first, second = meet(2, body, [0, 1])
    assert "/no/such: No such file or directory" in first
    assert second == "/no/such: No such file or directory"


def test_nothing_wrong_is_no_error() -> None:
    def body(gathering: Gathering) -> str:
        gathering.everywhere(lambda: None)
        return "well"

    assert meet(2, body, [0, 1]) == ["well", "well"]


def rank_error(line: str, *, of_another: bool) -> RankError:
    error = RankError(line)
    error.what, error.step, error.of_another = line, 7, of_another
    return error


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        # who waited for a rank of another host is no cause
        ([rank_error("a", of_another=True), rank_error("b", of_another=False)], "b"),
        ([rank_error("a", of_another=False), rank_error("b", of_another=False)], "a"),
        ([rank_error("a", of_another=False), UserError("b")], "b"),
    ],
)
def test_hosts_agree_on_the_cause(errors: list[Exception], cause: str) -> None:
    def body(gathering: Gathering) -> tuple[str, int | None]:
        gathering.begin_attempt()
        number = gathering.everyone[0].number
        agreed = gathering.agree_on(errors[number])
        return str(agreed).rpartition(": ")[2], getattr(agreed, "step", None)

    step = None if isinstance(errors["ab".index(cause)], UserError) else 7
    assert meet(2, body, [0, 1]) == [(cause, step)] * 2


def test_silent_host_is_named_where_it_may_be_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minitrain.harness.host_rendezvous.TOLD_S", 0.5)
    begun = threading.Event()

    def body(gathering: Gathering) -> str:
        if gathering.hosts.is_first:
            gathering.begin_attempt()
            begun.set()
            error = gathering.agree_on(rank_error("lost", of_another=True))
            # it would be useless to start again
            assert isinstance(error, UserError)
            return str(error)
        begun.wait(GENEROUS_S)
        return "silent"

    first, second = meet(2, body, [0, 1])
    assert first.startswith("no word from host 1 (")
    assert first.endswith("; lost")
    assert second == "silent"


def test_host_that_never_tells_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ranks have twice the limit of a wait to end, and then it is lost."""
    monkeypatch.setattr("minitrain.harness.host_rendezvous.TOLD_S", 0.5)
    monkeypatch.setattr("minitrain.harness.host_reports.SAY_S", 0.3)
    begun, over = threading.Event(), threading.Event()

    def body(gathering: Gathering) -> tuple[str, float]:
        if not gathering.hosts.is_first:
            begun.set()
            over.wait(GENEROUS_S)
            return "silent", 0.0
        begun.wait(GENEROUS_S)
        gathering.begin_attempt()
        gathering.timeout_s = 0.5
        began = time.monotonic()
        error = gathering.agree_on(None)
        over.set()
        assert isinstance(error, UserError)
        return str(error), time.monotonic() - began

    (line, took_s), _ = meet(2, body, [0, 1])
    assert line.startswith("no word from host 1 (")
    # twice 0.5 s, and 0.5 s to tell it
    assert 1.5 <= took_s < GENEROUS_S
    (said,) = [one for one in capsys.readouterr().err.splitlines() if "most" in one]
    assert said.startswith("waiting for host 1 (")
    assert re.search(r", \d s at most$", said)


class Leaves(HashStore):
    """The store of a host that is lost once somebody has read in it."""

    lost = False

    def get(self, key: str) -> bytes:
        self.lost = True
        return bytes(super().get(key))

    def check(self, keys: list[str]) -> bool:
        if self.lost:
            raise dist.DistNetworkError("closed by peer")
        return bool(super().check(keys))


def the_second_of_three(store: HashStore) -> Gathering:
    hosts = Hosts(3, "127.0.0.1", free_port(), LOOPBACK, 1)
    gathering = Gathering(hosts, store, 20, 3)
    gathering.everyone = [Known(n, "here", "127.0.0.1", 1) for n in (1, 0, 2)]
    return gathering


@pytest.mark.parametrize("by_the_watch", [False, True])
def test_cause_that_was_heard_outlives_the_store(by_the_watch: bool) -> None:
    """Before: no word from host 0."""
    store = Leaves()
    gathering = the_second_of_three(store)
    store.set("attempt 0 2", '{"line": "rank 2: a bug", "mistake": false}')
    if by_the_watch:
        assert gathering.ended_elsewhere()
    agreed = gathering.agree_on(rank_error("lost a peer", of_another=True))
    assert str(agreed) == "rank 2: a bug"
    # and nobody is asked any more
    agreed = gathering.agree_on(rank_error("lost a peer", of_another=True))
    assert str(agreed) == "rank 2: a bug"


def test_host_that_is_lost_after_all_told_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch's own thread may find it lost. Before: no word from host 0."""
    gathering = the_second_of_three(HashStore())
    hear = module.hear

    def and_then_it_is_lost(*arguments: Any) -> Any:
        heard = hear(*arguments)
        monkeypatch.setattr(gathering, "_lost_first", True)
        return heard

    monkeypatch.setattr(module, "hear", and_then_it_is_lost)
    for number in (0, 2):
        gathering.store.set(f"attempt 0 {number}", "{}")
    assert gathering.agree_on(None) is None


def test_ranks_that_ended_elsewhere_are_known_here() -> None:
    ended = threading.Event()

    def body(gathering: Gathering) -> list[bool]:
        gathering.begin_attempt()
        if gathering.hosts.is_first:
            before = gathering.ended_elsewhere()
            ended.set()
            gathering.store.wait(["attempt 1 1"])
            return [before, gathering.ended_elsewhere()]
        ended.wait(GENEROUS_S)
        gathering.agree_on(rank_error("here", of_another=False))
        return []

    assert meet(2, body, [0, 1]) == [[False, True], []]


def test_what_failed_elsewhere_is_told_to_who_ended_well() -> None:
    def body(gathering: Gathering) -> str:
        gathering.begin_attempt()
        failed = rank_error("failed", of_another=False)
        return str(gathering.agree_on(None if gathering.number else failed))

    assert meet(2, body, [0, 1]) == ["failed", "failed"]


def test_ranks_that_ended_well_elsewhere_end_nobody_here() -> None:
    def body(gathering: Gathering) -> bool:
        gathering.begin_attempt()
        if gathering.hosts.is_first:
            gathering.store.wait(["attempt 1 1"])
            ended = gathering.ended_elsewhere()
            assert gathering.agree_on(None) is None
            return ended
        return gathering.agree_on(None) is not None

    assert meet(2, body, [0, 1]) == [False, False]


def test_no_attempt_without_a_host_that_has_left() -> None:
    left = threading.Event()

    def body(gathering: Gathering) -> str:
        if gathering.hosts.is_first:
            left.wait(GENEROUS_S)
            gathering.store.wait(["left 1"])
            gathering.begin_attempt()
        left.set()
        return "left"

    first, second = meet(2, body, [0, 1])
    assert "has left the run" in first
    assert second == "left"
