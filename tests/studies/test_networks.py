"""Simulated hosts: traffic over the cable, and cleanup. Needs root and iproute2 except
for the rejections.
"""

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import network_namespaces as networks
import pytest
import torch
import torch.distributed as dist
from network_namespaces import CABLE, Networks, host_of, inside, over, shape, why_not
from one_line import refusal
from project import environment
from waiting import wait_for

from minitrain.comm.groups import distributed
from minitrain.harness.launcher import launch

pytestmark = pytest.mark.slow
WHY_NOT = why_not()
needs_root = pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}")
ELEMENTS = 100_000
# prints its namespaces, and waits to be killed
HOLDER = """
import os, time
from network_namespaces import Networks
with Networks() as hosts:
    print(*(os.stat(path).st_ino for path in hosts.paths), flush=True)
    time.sleep(60)
"""


def own_network() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def sent_bytes(path: str) -> int:
    """Return the bytes sent by the host at ``path`` over the cable so far."""
    command = ["ip", "-s", "-j", "link", "show", "dev", CABLE]
    with inside(path):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)[0]["stats64"]["tx"]["bytes"])


def add_over_cable(paths: Sequence[str]) -> tuple[float, list[int], str]:
    """Return the sum of an all-reduce, bytes sent per host, and the namespace."""
    with distributed() as (rank, world_size):
        with over(paths[host_of(rank, world_size)]):
            group = dist.new_group(list(range(world_size)))
        dist.barrier()
        before = [sent_bytes(path) for path in paths]
        dist.barrier()
        tensor = torch.full((ELEMENTS,), float(rank + 1))
        dist.all_reduce(tensor, group=group)
        dist.barrier()
        after = [sent_bytes(path) for path in paths]
        found = {float(x) for x in tensor.unique()}
        assert len(found) == 1
        sent = [b - a for a, b in zip(before, after, strict=True)]
        return found.pop(), sent, own_network()


@needs_root
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_group_talks_over_the_cable_and_ranks_stay(world_size: int) -> None:
    with Networks() as hosts:
        found = launch(add_over_cable, world_size, hosts.paths, timeout_s=60)
    payload = ELEMENTS * 4 * 2 * (world_size - 1) / world_size
    for total, sent, network in found:
        assert total == sum(range(1, world_size + 1))
        # a ring crosses the cable once in each direction, with headers
        for count in sent:
            assert payload <= count < 1.2 * payload
        assert network == own_network()


@needs_root
def test_cable_has_the_rate_that_it_was_given() -> None:
    command = ["tc", "qdisc", "show", "dev", CABLE]
    with Networks() as hosts:
        for rate, shown in (("100mbit", "rate 100Mbit"), ("1gbit", "rate 1Gbit")):
            for path in hosts.paths:
                shape(path, rate)
                with inside(path):
                    done = subprocess.run(command, capture_output=True, text=True)
                assert "qdisc tbf" in done.stdout
                assert shown in done.stdout
        line = refusal(shape, hosts.paths[0], "fast")
    assert line.startswith("hosts on one machine: `tc qdisc replace dev cable")


@needs_root
def test_nothing_is_left_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
    )
    try:
        assert holder.stdout is not None
        found = {int(word) for word in holder.stdout.readline().split()}
        assert len(found) == 2
        assert found <= networks_in_use()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    wait_for(lambda: [True] * (not found & networks_in_use()), 1)
    assert not [name for name in os.listdir("/run") if "cable" in name]


def networks_in_use() -> set[int]:
    """Return the namespaces that any process has entered or holds open."""
    found = set()
    for pattern in ("[0-9]*/ns/net", "[0-9]*/fd/*"):
        for path in Path("/proc").glob(pattern):
            with suppress(OSError):
                found.add(os.readlink(path))
    return {int(one[5:-1]) for one in found if one.startswith("net:[")}


def test_who_cannot_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(networks.os, "geteuid", lambda: 1000)
        patch.setattr(networks.shutil, "which", lambda _: "/sbin/ip")
        assert refusal(Networks) == "hosts on one machine: needs root"
        patch.setattr(networks.shutil, "which", lambda _: None)
        assert "needs iproute2 (ip is missing)" in refusal(Networks)

    # root may have restricted capabilities
    def refuse(_: int) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(networks, "_missing", lambda: None)
    monkeypatch.setattr(networks, "_libc", lambda: SimpleNamespace(unshare=refuse))
    line = "hosts on one machine: a network of its own: Operation not permitted"
    assert why_not() == f"needs root with all its rights ({line})"
