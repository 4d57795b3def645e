import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from ipv6 import require_ipv6
from one_line import refusal
from ports import free_port
from waiting import GENEROUS_S, wait_for

from minitrain.core.errors import RankError, UserError
from minitrain.harness import host_rendezvous as module
from minitrain.harness.host_rendezvous import (
    HostRendezvous,
    Known,
    find,
    join_hosts,
    within,
)
from minitrain.harness.hosts import Hosts, Interface

LOOPBACK = Interface("lo", "127.0.0.1")
Body = Callable[[HostRendezvous], Any]


def meet(
    body: Body,
    numbers: Sequence[int] = (0, 1),
    sizes: Sequence[tuple[int, int]] | None = None,
    timeout_s: float = 20,
    address: str = "127.0.0.1",
) -> list[Any]:
    """Return the result of ``body`` on each host, or its error; ``sizes``: the numbers
    of hosts and ranks that each host is given.
    """
    port = free_port()

    def be(number: int, size: tuple[int, int]) -> Any:
        hosts = Hosts(size[0], address, port, LOOPBACK, number)
        try:
            with join_hosts(hosts, timeout_s, size[1]) as rendezvous:
                return body(rendezvous)
        except (UserError, RankError) as error:
            return str(error)

    with ThreadPoolExecutor(len(numbers)) as threads:
        return list(threads.map(be, numbers, sizes or [(2, 12)] * len(numbers)))


def test_hosts_know_each_other() -> None:
    def numbers(rendezvous: HostRendezvous) -> list[int]:
        return [one.number for one in rendezvous.everyone]

    # each host lists itself first
    found = meet(numbers, range(3), [(3, 12)] * 3)
    assert found == [[0, 1, 2], [1, 0, 2], [2, 0, 1]]


def test_endpoint_may_be_of_another_family_than_gloo() -> None:
    require_ipv6()
    assert meet(lambda _: "met", address="::1") == ["met", "met"]


def test_missing_host_is_told_with_those_that_came() -> None:
    first, second = meet(lambda _: "met", sizes=[(3, 12)] * 2, timeout_s=2)
    assert "waited 2 s for 3 hosts: only host 0 (" in first
    assert "), host 1 (" in first
    assert second == first


@pytest.mark.parametrize(
    # the third host of two is not reported as one too many
    "sizes",
    [[(2, 2), (2, 4)], [(3, 6), (3, 6), (2, 6)]],
)
def test_sizes_that_differ_are_told_on_both_hosts_at_once(
    sizes: list[tuple[int, int]],
) -> None:
    here, *_, there = meet(lambda _: "met", range(len(sizes)), sizes)
    told = "--nnodes = {}, --world-size = {}"
    first, other = told.format(*sizes[0]), told.format(*sizes[-1])
    where = f"{socket.gethostname()} (127.0.0.1)"
    # a host in between may join after the first has left
    assert here == there == f"{other} on {where}, but {first} on the first host"


def test_one_host_too_many_is_told() -> None:
    def until_it_came(rendezvous: HostRendezvous) -> str:
        wait_for(lambda: [*range(rendezvous.store.add("taken 1", 0))], 2)
        return "met"

    lines = meet(until_it_came, [0, 1, 1])
    assert sorted(lines)[1:] == ["met", "met"]
    assert "all 2 hosts of the run have joined already" in sorted(lines)[0]


@pytest.mark.parametrize("closes", [True, False], ids=["closes", "is silent"])
def test_stranger_at_the_endpoint_is_one_line(closes: bool) -> None:
    began = time.monotonic()
    # with this handler it closes every connection at once
    stranger = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    with stranger:
        if closes:
            threading.Thread(target=stranger.serve_forever).start()
        port = stranger.server_address[1]
        try:
            line = refusal(find, Hosts(2, "127.0.0.1", port, LOOPBACK, 1), 3)
        finally:
            if closes:
                stranger.shutdown()
    told = "answered by another program, or by a minitrain run that has just ended"
    assert line == f"--rdzv-endpoint: 127.0.0.1:{port}: {told}"
    assert time.monotonic() - began < GENEROUS_S


def test_endpoint_that_is_not_served_or_is_taken(taken_port: str) -> None:
    (line,) = meet(lambda _: "met", [1], timeout_s=1)
    assert "no answer within 1 s (Connection refused)" in line
    hosts = Hosts(2, "127.0.0.1", int(taken_port), LOOPBACK, 0)
    assert "Address already in use" in refusal(join_hosts(hosts, 1, 2).__enter__)


def test_host_that_is_not_reached_is_told_on_all(monkeypatch) -> None:
    connect = socket.create_connection
    ports: list[int] = []

    def blocked(address: tuple[str, int], *arguments: Any) -> socket.socket:
        # the endpoint comes first, then the host that is reached
        ports.append(address[1])
        if len({*ports}) == 3 and address[1] not in ports[:-1]:
            raise TimeoutError("timed out")
        return connect(address, *arguments)

    monkeypatch.setattr(socket, "create_connection", blocked)
    lines = meet(lambda _: "met", timeout_s=5)
    (one,) = {line[line.index("network: ") :] for line in lines}
    assert re.match(r"network: host \d \(.*\) cannot connect to host \d \(", one)
    assert "over its interface lo: timed out" in one


def rank_error(line: str, *, of_another: bool = False) -> RankError:
    error = RankError(line)
    error.kind, error.of_another = 7, of_another
    return error


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        # a rank that waited for a rank of another host is not the cause
        ([rank_error("a", of_another=True), rank_error("b")], "b"),
        ([rank_error("a"), rank_error("b")], "a"),
        ([rank_error("a"), UserError("b")], "b"),
        # ranks that succeeded here and failed there
        ([rank_error("a"), None], "a"),
        ([None, None], "None"),
    ],
)
def test_hosts_agree_on_the_cause(errors: list[Exception], cause: str) -> None:
    def body(rendezvous: HostRendezvous) -> tuple[str, int | None]:
        agreed = rendezvous.agree_on(errors[rendezvous.number])
        return str(agreed).rpartition(": ")[2], getattr(agreed, "kind", None)

    kind = 7 if isinstance(errors["ab".find(cause)], RankError) else None
    assert meet(body) == [(cause, kind)] * 2


def test_silent_host_is_named_where_it_may_be_the_cause(monkeypatch) -> None:
    """Its ranks have twice the limit of a wait to exit; then it is lost."""
    monkeypatch.setattr(module, "REPORTS_S", 0.5)
    begun, over = threading.Event(), threading.Event()

    def body(rendezvous: HostRendezvous) -> list[str]:
        if not rendezvous.hosts.is_first:
            begun.set()
            over.wait(GENEROUS_S)
            return []
        begun.wait(GENEROUS_S)
        rendezvous.timeout_s = 0.5
        began = time.monotonic()
        ended_well = rendezvous.agree_on(None)
        # twice 0.5 s, and 0.5 s to report it
        assert 1.5 <= time.monotonic() - began < GENEROUS_S
        lost = rendezvous.agree_on(rank_error("lost", of_another=True))
        over.set()
        # a restart would be useless
        assert isinstance(ended_well, UserError)
        assert isinstance(lost, UserError)
        return [str(ended_well), str(lost)]

    (lines, _) = meet(body)
    assert all(line.startswith("no answer from host 1 (") for line in lines)
    assert lines[1].endswith("; lost")


@pytest.mark.parametrize("failed", [True, False])
def test_ranks_that_failed_elsewhere_are_known_here(failed: bool) -> None:
    asked = threading.Event()

    def body(rendezvous: HostRendezvous) -> list[bool]:
        if rendezvous.hosts.is_first:
            before = rendezvous.ended_elsewhere()
            asked.set()
            # after the check of connections
            rendezvous.store.wait(["1 1"])
            ended = [before, rendezvous.ended_elsewhere()]
            rendezvous.agree_on(None)
            return ended
        asked.wait(GENEROUS_S)
        rendezvous.agree_on(rank_error("here") if failed else None)
        return []

    assert meet(body) == [[False, failed], []]


SERVES = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(60)
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.kill()


def test_store_that_stops_to_answer_is_lost_within_the_limit(
    server: subprocess.Popen[str],
) -> None:
    hosts = Hosts(2, "127.0.0.1", int(server.stdout.readline()), LOOPBACK, 1)
    store = find(hosts, 1)
    # the exceptions of a call are those of the store
    with pytest.raises(dist.DistStoreError):
        within(GENEROUS_S, lambda: store.wait(["nothing"], timedelta(seconds=1)))
    assert within(GENEROUS_S, lambda: store.check(["nothing"])) is False
    server.send_signal(signal.SIGSTOP)
    # until then it may answer
    stopped, of_server = psutil.STATUS_STOPPED, psutil.Process(server.pid)
    wait_for(lambda: [1] if of_server.status() == stopped else [], 1)
    with pytest.raises(dist.DistNetworkError, match="no answer within 1 s"):
        within(1, lambda: store.check(["nothing"]))
    rendezvous = HostRendezvous(hosts, store, 1)
    rendezvous.everyone = [Known(1, "b", "127.0.0.1", 1), Known(0, "a", "127.0.0.1", 1)]
    assert rendezvous.ended_elsewhere()
