"""Simulated hosts: traffic over the cable, and cleanup."""

import json
import subprocess
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from network_namespaces import CABLE, Networks, host_of, inside, over, shape, why_not
from one_line import refusal

from minitrain.comm.groups import distributed
from minitrain.harness.launcher import launch

WHY_NOT = why_not()
missing = pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}")
pytestmark = [pytest.mark.slow, missing]
ELEMENTS = 100_000


def sent_bytes(path: str) -> int:
    """Return the bytes sent by the host at ``path`` over the cable so far."""
    command = ["ip", "-s", "-j", "link", "show", "dev", CABLE]
    with inside(path):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)[0]["stats64"]["tx"]["bytes"])


def add_over_cable(paths: Sequence[str]) -> tuple[float, list[int]]:
    """Return the sum of an all-reduce, and the bytes sent per host."""
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
        (total,) = tensor.unique()
        return float(total), [b - a for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_group_talks_over_the_cable(world_size: int) -> None:
    with Networks() as hosts:
        found = launch(add_over_cable, world_size, hosts.paths, timeout_s=60)
    payload = ELEMENTS * 4 * 2 * (world_size - 1) / world_size
    for total, sent in found:
        assert total == sum(range(1, world_size + 1))
        # a ring crosses the cable once in each direction, with headers
        for count in sent:
            assert payload <= count < 1.2 * payload


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
