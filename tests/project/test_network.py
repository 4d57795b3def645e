"""The study `network` by hand: what it expects, and what it makes of its runs."""

import pytest
from speeds import named
from tabulate_hosts import expected_ms

from minitrain.analysis.link_model import Link, Network, Shaped
from minitrain.core.rate import LOOPBACK

# no headers, no latency of frames: at 8 Mbit/s a byte takes a microsecond
CABLE = Shaped(alpha=1e-3, frame_bytes=0, overhead=1.0, burst_bytes=40_000)
LINKS = Network(Link.of(0, 1e-9), CABLE)


def test_buckets_of_a_step_share_what_a_link_has_saved_up() -> None:
    """Two messages of 1 ms for each bucket, and 100,000 bytes, of which the first
    40,000 pass at once; the second bucket begins when the first is done.
    """
    found = expected_ms(named("ddp"), [60_000, 40_000], "8mbit", LINKS)
    assert found == pytest.approx(4 * 1 + 100 - 40)
    # of four ranks each sends 1.5 times a bucket in six messages
    found = expected_ms(named("ddp, 4 hosts"), [60_000, 40_000], "8mbit", LINKS)
    assert found == pytest.approx(12 * 1 + 150 - 40)


def test_nothing_is_expected_of_a_link_that_was_not_fitted() -> None:
    assert expected_ms(named("ddp"), [60_000], "8mbit", None) is None
    assert expected_ms(named("ddp"), [60_000], "8mbit", Network(Link.of(0, 1))) is None
    assert expected_ms(named("one process"), [60_000], LOOPBACK, LINKS) is None
