"""Links and algorithms at scale by hand; recovery of coefficients:
tests/project/test_prediction.py.
"""

import pytest
from at_scale import (
    Cluster,
    flat_ring_s,
    hierarchical_s,
    latency_share,
    smallest_useful_bucket,
)
from link_model import Line, Link, Shaped


def test_ring_by_hand() -> None:
    # 2 (n - 1) / n is 1 for two ranks, and not 2
    found = [Link.of(0, 1e-9).seconds(3e6, ranks) for ranks in (2, 3, 4)]
    assert found == pytest.approx([3e-3, 4e-3, 4.5e-3])
    # reduce-scatter and all-gather: 2 (n - 1)
    found = [Link.of(1e-3, 0).seconds(3e6, ranks) for ranks in (1, 2, 4, 8)]
    assert found == pytest.approx([0, 2e-3, 6e-3, 14e-3])


def test_each_size_is_on_its_line() -> None:
    link = Link((Line(0, 1, 0), Line(1000, 3, 0.5)))
    assert link.seconds(999, 2) == pytest.approx(2)
    assert link.seconds(1000, 2) == pytest.approx(6 + 500)
    twice = link.crowded(2, 3)
    assert twice.seconds(1000, 2) == pytest.approx(12 + 1500)


def test_a_burst_passes_at_once_after_a_pause() -> None:
    link = Link((Line(0, 0, 0.01),), burst_bytes=1000)
    assert link.seconds(3000, 2) == pytest.approx(20)
    assert link.seconds(800, 2) == 0
    # in 5 s the bucket gets 500 tokens
    assert link.seconds(3000, 2, idle_s=5) == pytest.approx(25)
    assert link.seconds(3000, 2, idle_s=0) == pytest.approx(30)


def test_a_cable_is_never_faster_than_the_processor() -> None:
    # 125 MB/s, 1.04 bytes on the wire for one: 8.32 ns a byte
    shaped = Shaped(alpha=1e-4, frame_bytes=1000, overhead=1.04, burst_bytes=100)
    floor = Link.of(0, 2e-9)
    slow = shaped.at(125e6, floor)
    assert slow.burst_bytes == 100
    assert slow.lines == (Line(0, pytest.approx(1.08e-4), pytest.approx(8.32e-9)),)
    fast = shaped.at(125e9, floor)
    assert fast.burst_bytes == 0
    assert fast.lines[0].beta == 2e-9
    assert shaped.at(125e9).lines[0].beta == pytest.approx(1.04 / 125e9)


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
