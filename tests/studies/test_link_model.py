"""Link model by hand; recovery of coefficients: tests/project/test_prediction.py."""

import pytest
from link_model import Line, Link, Shaped

ALPHA, BETA = 2e-4, 8e-10
SIZES = [4.0 * 4**power for power in range(13)]


def test_ring_by_hand() -> None:
    # 2 (n - 1) / n is 1 for two ranks, and not 2
    assert Link.of(0, 1e-9).seconds(3e6, 2) == pytest.approx(3e-3)
    assert Link.of(0, 1e-9).seconds(3e6, 3) == pytest.approx(4e-3)
    assert Link.of(0, 1e-9).seconds(3e6, 4) == pytest.approx(4.5e-3)

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
