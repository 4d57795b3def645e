"""Study `network`: expected times by hand, and its judgement of runs."""

from itertools import product

import pandas as pd
import pytest
from arms import AGAIN, ARMS, ONE_HOST
from expectations import expected_ms
from link_model import Link, Network, Shaped
from link_rate import LOOPBACK
from speeds import Ratio, Speeds, named
from tabulate_hosts import judged_by

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
    # nothing of a link that was not fitted
    assert expected_ms(named("ddp"), [60_000], "8mbit", None) is None
    assert expected_ms(named("ddp"), [60_000], "8mbit", Network(Link.of(0, 1))) is None
    assert expected_ms(named("one process"), [60_000], LOOPBACK, LINKS) is None


ROUNDS, SLOW, FAST = range(3), "100 Mbit/s", "unshaped"
BUSY, LOAD = "other processes used 34 % of the CPU", {"steal_share": 0.04}


def speeds(factors: dict[str, tuple[float, ...]], slow: float = 0.5) -> Speeds:
    """Every arm does 1000 tokens a second, ``slow`` times that over the slow link, and
    in each round ``factors`` times that.
    """
    rows = [
        {
            "round": number,
            "link": link,
            "arm": arm.name,
            "tokens_per_s": 1000.0
            * (slow if link == SLOW else 1)
            * factors.get(arm.name, (1, 1, 1))[number],
            "step_mean_ms": 30.0,
            "allreduce_p50_ms": 3.0,
        }
        for number, link, arm in product(ROUNDS, (ONE_HOST, FAST, SLOW), ARMS)
        if arm.goes_over(link)
    ]
    return Speeds(pd.DataFrame(rows))


def test_noise_floor_is_the_most_that_twins_were_apart() -> None:
    # 4 % faster, and in another round 1 / 1.25 times as fast: 25 % apart
    found = speeds({AGAIN: (1.0, 1.04, 0.8)})
    assert speeds({AGAIN: (1.0, 1.04, 0.99)}).noise_floor() == pytest.approx(0.04)
    # of one twin all-reduces took half as long
    twin = found._rows["arm"] == AGAIN
    found._rows.loc[twin & (found._rows["round"] == 1), "allreduce_p50_ms"] = 1.5
    # and the median arm has no spread
    floors = {"noise_floor": 0.25, "allreduce_noise_floor": 1.0, "spread": 0}
    assert judged_by(found) == pytest.approx(floors)


def test_what_differs() -> None:
    assert Ratio(1.2, 1.1, 1.3).differs(0.1)
    assert Ratio(0.8, 0.7, 0.9).differs(0.1)
    # not further than twins are
    assert not Ratio(1.08, 1.05, 1.3).differs(0.1)
    assert not Ratio(0.93, 0.9, 0.99).differs(0.1)
    # one round contradicts the others
    assert not Ratio(1.2, 0.99, 1.3).differs(0.1)
    assert not Ratio(0.8, 0.7, 1.01).differs(0.1)
