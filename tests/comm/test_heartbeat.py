"""Heartbeats: what a rank marks is seen at once by its launcher."""

import os
import signal
import time
from pathlib import Path

from waiting import wait_for

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


def test_half_of_a_change_is_never_seen(tmp_path: Path) -> None:
    mine = make_place(tmp_path / "place-0")
    writer = os.fork()
    while writer == 0:
        mine.mark(0, "start")
        mine.mark(2**28 - 1, "end")
    try:
        wait_for(lambda: [1] if mine.look().step else [], 1)
        seen = {mine.look()[:2] for _ in range(100_000)}
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert seen == {(0, "start"), (2**28 - 1, "end")}
