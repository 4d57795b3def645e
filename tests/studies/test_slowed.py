"""A slow rank is named, with real ranks and clocks, and its bits stay the same."""

from dataclasses import replace

import pandas as pd
import pytest
from slowed import Delay, timed_run
from subjects import make_run

from minitrain.analysis.stragglers import find_stragglers
from minitrain.sync.catalog import find_strategy
from minitrain.sync.guarantees import Defaults

pytestmark = pytest.mark.slow
# of some milliseconds
STEPS = 40


def test_rank_that_is_slowed_a_lot_is_named() -> None:
    run = replace(make_run(steps=STEPS), hash_every=STEPS)
    rows = timed_run(run, 2, Delay(0, 30, True), timeout_s=120)
    assert len(rows) == 2 * STEPS
    found = find_stragglers(pd.DataFrame(rows), 4)
    assert [lag.rank for lag in found.slow] == [0]
    assert found.slow[0].excess_ms > 15
    assert found.others_wait_ms > 15


def test_slowed_rank_is_named_where_others_wait_in_the_hook() -> None:
    """With several buckets, for each of which the fast rank waits."""
    sync, many = find_strategy("hierarchical"), Defaults(bucket_cap_mb=0.004)
    run = replace(make_run(steps=80), hash_every=80, sync=sync, tuning=many)
    rows = pd.DataFrame(timed_run(run, 2, Delay(1, 30), timeout_s=120))
    assert find_stragglers(rows, 4).slow == []
    found = find_stragglers(rows, 4, waits_within=sync.guarantees.waits_within)
    assert [lag.rank for lag in found.slow] == [1]
    assert found.slow[0].excess_ms > 15
