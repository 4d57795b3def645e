import os
from pathlib import Path

import pytest
from project import run_python

from minitrain.analysis.busy import MAX_SPREAD, MAX_TAKEN, why_busy
from minitrain.core import cpu_load
from minitrain.core.cpu_load import Usage, load_of


def stat(*cores: tuple[int, int]) -> str:
    """Return a /proc/stat with these busy and stolen seconds per core."""
    rows = [
        f"cpu{number} {50 * busy} {30 * busy} {20 * busy} 7 7 7 7 {100 * steal} 0 0"
        for number, (busy, steal) in enumerate(cores)
    ]
    return "\n".join(["cpu  1 1 1 1 1 1 1 1 1 1", *rows, "intr 5", "ctxt 9"])


def test_readings_are_of_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three cores, this process may use the first two."""
    path = tmp_path / "stat"
    path.write_text(stat((10, 1), (20, 2), (90, 90)))
    monkeypatch.setattr(cpu_load, "PROC_STAT", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    before = Usage.now()
    # user, nice and system of two cores
    assert (before.busy_s, before.steal_s) == (30, 3)
    path.write_text(stat((16, 1), (24, 4), (999, 999)))
    used = Usage.now().since(before)
    assert (used.busy_s, used.steal_s) == (10, 2)
    assert used.at_s > 0


def test_load_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_load, "usable_cores", lambda: 2)
    # in 10 s two cores have 20 s: 12 were computed, 9 of them by the two ranks
    ranks = [Usage(10.0, 12.0, 1.0, 5.0), Usage(10.0, 11.5, 1.0, 4.0)]
    found = load_of(ranks)
    assert found["others_share"] == pytest.approx(3 / 20)
    assert found["steal_share"] == pytest.approx(1 / 20)
    # readings are coarse: ranks alone may seem to compute more than all
    assert load_of([Usage(10.0, 12.0, 0.0, 12.01)])["others_share"] == 0


def test_what_is_too_short_is_unknown() -> None:
    found = load_of([Usage.now().since(Usage.now())])
    assert (found["others_share"], found["steal_share"]) == (None, None)
    for unknown in (found, None):
        assert why_busy(unknown, 0.1) is None
        assert why_busy(unknown, 0.6) == "rounds of the same arm lie 60 % apart"


def test_limits() -> None:
    for others, steal, spread, why in (
        (MAX_TAKEN - 0.001, 0.0, MAX_SPREAD - 0.001, None),
        (MAX_TAKEN + 0.001, 0.0, 0.10, "other processes used 10 % of the CPU"),
        (0.06, 0.06, 0.10, "other processes used 12 % of the CPU"),
        (0.0, 0.0, MAX_SPREAD + 0.1, "rounds of the same arm lie 60 % apart"),
    ):
        found = {"others_share": others, "steal_share": steal}
        assert why_busy(found, spread) == why


def test_computing_of_children_is_own_where_it_is_asked_for() -> None:
    # as in a study that starts ranks and waits for their exit
    burn = "import time\nwhile time.process_time() < 1.1: pass"
    before = {both: Usage.now(with_children=both) for both in (False, True)}
    run_python("-c", burn)
    alone, together = (
        Usage.now(with_children=both).since(before[both]) for both in (False, True)
    )
    assert alone.own_s < 1 <= together.own_s
    assert load_of([together])["others_share"] < load_of([alone])["others_share"]
