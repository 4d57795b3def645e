"""Model at scale: both algorithms by hand, and what a step keeps of its speed."""

import pytest
from at_scale import (
    Cluster,
    flat_ring_s,
    hierarchical_s,
    latency_share,
    smallest_useful_bucket,
)
from link_model import Link

INSIDE, OUTSIDE = Link.of(1, 0.01), Link.of(10, 0.1)


def test_both_ways_by_hand() -> None:
    # one host needs no link outside
    cluster = Cluster(4, 8, INSIDE, OUTSIDE)
    # 6 messages, 1.5 times the bytes
    assert flat_ring_s(100, cluster) == pytest.approx(6 + 1.5)
    assert hierarchical_s(100, cluster) == pytest.approx(6 + 1.5)
    # sixteen ranks of two hosts
    cluster = Cluster(16, 8, INSIDE, OUTSIDE)
    assert cluster.hosts == 2
    # 30 messages and 30 / 16 of the bytes at the pace of the slow link
    assert flat_ring_s(160, cluster) == pytest.approx(300 + 300 * 0.1)
    # in the host 14 messages and 14 / 8; between two hosts 2 and all bytes once
    inside = 14 + 14 / 8 * 160 * 0.01
    assert hierarchical_s(160, cluster) == pytest.approx(inside + 20 + 16)


def test_latency_and_efficiency_by_hand() -> None:
    # 2 x 7 messages of 1 s; 2 x 7 / 8 x 800 bytes of 0.01 s: equal
    assert latency_share(800, INSIDE, 8) == pytest.approx(0.5)
    assert smallest_useful_bucket(INSIDE, 8) == pytest.approx(800)
