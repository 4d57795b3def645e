"""Places: what is written is seen at once, whole, by another process, and is cheap."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import GENEROUS_S

from minitrain.comm import heartbeat as place
from minitrain.comm.heartbeat import PHASES, Heartbeat, find_place, make_place


def test_another_mapping_sees_what_is_marked(tmp_path: Path) -> None:
    assert find_place(tmp_path / "place-1") is None
    mine = make_place(tmp_path / "place-1")
    theirs = find_place(tmp_path / "place-1")
    assert theirs is not None
    assert theirs.look()[:2] == (0, "start")
    mine.limit(2.5)
    mine.mark(2**28 - 1, "backward")
    seen = theirs.look()
    assert (seen.step, seen.phase, seen.limit_s) == (2**28 - 1, "backward", 2.5)


def test_every_mark_is_another_though_it_says_the_same() -> None:
    """Four micro-batches may be in "forward" whenever the launcher looks."""
    one = Heartbeat()
    for step in (7, 3):
        one.mark(step, "data")
        for phase in PHASES:
            one.enter(phase)
            assert one.look()[:2] == (step, phase)
    one.enter("forward")
    before = one.look()
    time.sleep(0.01)
    assert one.look() == before
    one.enter("forward")
    assert one.look() != before


def test_place_in_words() -> None:
    one = Heartbeat()
    for phase, said in {
        "start": "",
        "setup": "before its first step",
        "forward": "at step 12, forward",
        "write": "after its last step",
        "end": "after its last step",
    }.items():
        one.mark(12, phase)
        assert str(one.look()) == said


WRITER = """
import sys
from pathlib import Path
from minitrain.comm.heartbeat import find_place
place = find_place(Path(sys.argv[1]))
while True:
    place.mark(0, "start")
    place.mark(2**28 - 1, "end")
"""


def test_nobody_sees_half_of_a_change(tmp_path: Path) -> None:
    """Between two marks that differ in every bit but the time's."""
    file = tmp_path / "place-0"
    mine = make_place(file)
    pairs = {(0, "start"), (2**28 - 1, "end")}
    with subprocess.Popen([sys.executable, "-c", WRITER, file]) as writer:
        try:
            deadline = time.monotonic() + GENEROUS_S
            while mine.look().step == 0:
                assert time.monotonic() < deadline
            seen = {mine.look()[:2] for _ in range(100_000)}
        finally:
            writer.kill()
    assert seen == pairs


def test_mark_costs_a_microsecond_or_so() -> None:
    one, count, best = Heartbeat(), 10_000, 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(count):
            one.mark(12, "backward")
        best = min(best, (time.perf_counter() - start) / count)
    assert best < 3e-6


def test_process_that_is_no_rank_of_ours_has_a_place_that_nobody_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_place(place.file_of(tmp_path, 0))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MINITRAIN_STORE", str(tmp_path / "ranks"))
    monkeypatch.setenv("MINITRAIN_LAUNCHER_PID", str(os.getpid()))
    place.my_heartbeat().mark(5, "data")
    seen = find_place(place.file_of(tmp_path, 0))
    assert seen is not None
    assert seen.look()[:2] == (0, "start")
