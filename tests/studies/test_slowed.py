"""A slow rank is named, with real ranks and clocks, and its bits stay the same."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from slowed import Delay, Join, cpu_quota, timed_run, why_no_quota
from subjects import make_run

from minitrain.analysis.stragglers import find_stragglers
from minitrain.check.trial import run_ranks
from minitrain.sync.catalog import find_strategy
from minitrain.sync.guarantees import Defaults

pytestmark = pytest.mark.slow
# of some milliseconds
STEPS = 40
# joins a control group, and computes for half a second
BUSY = """
import sys, time
with open(sys.argv[1], "w") as procs:
    procs.write("0")
end = time.time() + 0.5
while time.time() < end:
    pass
"""


@pytest.mark.parametrize(("rank", "is_busy"), [(0, False), (1, True)])
def test_rank_that_is_slowed_a_lot_is_named(rank: int, is_busy: bool) -> None:
    run = replace(make_run(steps=STEPS), hash_every=STEPS)
    rows = timed_run(run, 2, Delay(rank, 30, is_busy), timeout_s=120)
    assert len(rows) == 2 * STEPS
    found = find_stragglers(pd.DataFrame(rows), 4)
    assert found.undecided is None
    assert [lag.rank for lag in found.slow] == [rank]
    # sleep lasts at least as long as requested
    assert found.slow[0].excess_ms > 15
    assert found.others_wait_ms is not None
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


def test_slowed_rank_computes_the_same() -> None:
    clean, slowed = (run_ranks(make_run(), 2, inject) for inject in (None, Delay(1, 2)))
    assert slowed.losses == clean.losses
    for mine, others in zip(slowed.states, clean.states, strict=True):
        assert mine.keys() == others.keys()
        assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_quota_holds_back_or_says_why() -> None:
    """Control groups need root, and are not available everywhere."""
    if reason := why_no_quota():
        assert "control group" in reason or "quota" in reason
        return
    with cpu_quota(0.2) as procs:
        subprocess.run([sys.executable, "-c", BUSY, str(procs)], check=True)
        lines = (procs.parent / "cpu.stat").read_text().splitlines()
        assert int(dict(line.split() for line in lines)["nr_throttled"]) > 0
    assert not procs.parent.exists()


def test_rank_joins_the_group_of_its_quota(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    run_ranks(make_run(steps=2), 2, Join(3, procs))
    assert not procs.exists()
    run_ranks(make_run(steps=2), 2, Join(1, procs))
    assert procs.read_text() == "0"
