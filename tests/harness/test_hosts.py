import argparse
from types import SimpleNamespace

import psutil
import pytest
from ipv6 import require_ipv6
from one_line import refusal

from minitrain.harness import hosts
from minitrain.harness.hosts import Hosts, Interface, add_arguments, hosts_of

HERE = Interface("eth0", "10.0.0.1")
LOOPBACK = Interface("lo", "127.0.0.1")


@pytest.fixture(autouse=True)
def two_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate host 10.0.0.1; all other addresses are reached over eth0."""

    def towards(address: str) -> Interface:
        return LOOPBACK if address.startswith("127.") else HERE

    monkeypatch.setattr(hosts, "own_interfaces", lambda: [LOOPBACK, HERE])
    monkeypatch.setattr(hosts, "interface_towards", towards)


def hosts_for(line: str) -> Hosts | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return hosts_of(parser.parse_args(line.split()))


def test_without_options_there_is_one_host() -> None:
    assert hosts_for("") is None
    assert hosts_for("--nnodes 1") is None
    assert hosts_for("--nnodes 1 --rdzv-endpoint a:1 --node-rank 0") is None


def test_host_that_has_the_address_is_the_first() -> None:
    first = hosts_for("--nnodes 2 --rdzv-endpoint 10.0.0.1")
    other = hosts_for("--nnodes 2 --rdzv-endpoint 10.0.0.2:5000")
    assert first == Hosts(2, "10.0.0.1", 29400, HERE)
    assert first.is_first
    assert first.endpoint == "10.0.0.1:29400"
    assert other == Hosts(2, "10.0.0.2", 5000, HERE)
    assert not other.is_first

    # the number distinguishes virtual hosts
    line = "--nnodes 2 --rdzv-endpoint 127.0.0.1:5000 --node-rank"
    for number, is_first in ((0, True), (1, False)):
        found = hosts_for(f"{line} {number}")
        assert found == Hosts(2, "127.0.0.1", 5000, LOOPBACK, number)
        assert found.is_first is is_first
    # addresses of IPv6 stand in brackets
    found = hosts_for("--nnodes 2 --rdzv-endpoint [fe80::1]:5000")
    assert found == Hosts(2, "fe80::1", 5000, HERE)
    assert found.endpoint == "[fe80::1]:5000"


REFUSED = [
    ("--nnodes 0", "--nnodes = 0: must be at least 1"),
    ("--nnodes 2", "--rdzv-endpoint: is missing"),
    ("--rdzv-endpoint 10.0.0.1", "--nnodes: is missing"),
    ("--node-rank 1", "--nnodes: is missing"),
    ("--interface eth0", "--nnodes: is missing"),
    ("--nnodes 2 --rdzv-endpoint 10.0.0.1:99999", "a port from 1 to 65535"),
    ("--nnodes 2 --rdzv-endpoint :29400", "must be HOST:PORT"),
    ("--nnodes 2 --rdzv-endpoint no.such.host.invalid", "'no.such.host.invalid'"),
    ("--nnodes 2 --rdzv-endpoint 10.0.0.1 --node-rank 2", "must be from 0 to 1"),
    ("--nnodes 2 --rdzv-endpoint 10.0.0.1 --interface eth7", "must be one of"),
]


def test_options_that_do_not_fit_are_refused() -> None:
    for line, message in REFUSED:
        assert message in refusal(hosts_for, line)
    # nor ranks that do not come out even
    three = Hosts(3, "10.0.0.1", 29400, HERE)
    assert three.ranks_here(6) == 2
    assert "must be a multiple of --nnodes = 3" in refusal(three.ranks_here, 4)


def test_interface_that_is_down_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its addresses still are those of this host."""
    monkeypatch.undo()
    found = hosts_for("--nnodes 2 --rdzv-endpoint 127.0.0.1")
    assert found.is_first
    assert found.interface == LOOPBACK
    down = {"lo": SimpleNamespace(isup=False)}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: down)
    for option in ("", " --interface lo"):
        line = f"--nnodes 2 --rdzv-endpoint 127.0.0.1{option}"
        assert "--interface = 'lo': must be one of" in refusal(hosts_for, line)
    assert found.is_first


def test_of_two_families_gloo_takes_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    both = [LOOPBACK, Interface("lo", "::1")]
    monkeypatch.setattr(hosts, "own_interfaces", lambda: both)
    require_ipv6()
    assert hosts.interface_towards("::1") == LOOPBACK
