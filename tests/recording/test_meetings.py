"""Ranks that meet: all decide the same, whoever is late, elsewhere, or has gone."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from minitrain.comm.torch_private import HashStore
from minitrain.recording.alarm import Alarm
from minitrain.recording.meetings import Meetings

# far above what ranks need on a busy machine, and what a test waits for in vain
SOON_S, TIMEOUT_S = 20.0, 0.3
Ranks = list[Meetings]
ENDS = "; sharded tensors need all ranks, so the recording ends here"


def ranks_of(world_size: int, timeout_s: float = SOON_S) -> Ranks:
    store = HashStore()
    return [Meetings(store, rank, world_size, timeout_s) for rank in range(world_size)]


def at_once(ranks: Ranks, do: Callable[[Meetings], Alarm | None]) -> list[Alarm | None]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [*pool.map(do, ranks)]


def line_of(found: list[Alarm | None]) -> str:
    """What all ranks were told."""
    assert found[0] is not None
    assert found == [found[0]] * len(found)
    return found[0].line


def test_those_who_are_at_the_same_place_agree_and_leave_no_keys() -> None:
    ranks = ranks_of(3)
    for step in range(20):
        found = at_once(ranks, lambda one, s=step: one.come(f"step {s}", s))
        assert found == [None] * 3
    # where each is, and the last meeting: come, and decided; HashStore counts one more
    assert ranks[0].store.num_keys() <= 3 + 2 + 1


def test_who_waited_in_vain_decides_for_who_comes_late() -> None:
    """Though all are there by then."""
    ranks = ranks_of(3, TIMEOUT_S)
    early = at_once(ranks[:2], lambda one: one.come("step 5", 5))
    late = ranks[2].come("step 4", 4)
    line = "minitrain: step 5: ranks, rank 2: did not come to step 5 within 0.3 s"
    assert line_of([*early, late]) == line + ENDS


def test_a_decision_is_one_however_close_ranks_come_to_the_limit() -> None:
    for wait in range(0, 40, 2):
        ranks = ranks_of(2, 0.02)

        def come(one: Meetings, wait: int = wait) -> Alarm | None:
            time.sleep(one.rank * wait / 1000)
            return one.come("step 0", 0)

        first, second = at_once(ranks, come)
        assert first == second


def test_ranks_at_unlike_places_hear_it_at_once() -> None:
    ranks = ranks_of(3)
    begin = time.monotonic()
    found = at_once(
        ranks, lambda one: one.come("step 4" if one.rank == 1 else "step 5", 5)
    )
    assert time.monotonic() - begin < SOON_S / 2
    line = "minitrain: step 5: steps, rank 1: at step 4, but elsewhere step 5"
    assert line_of(found) == line + ENDS


def test_nobody_waits_for_who_has_left() -> None:
    ranks = ranks_of(2)
    at_once(ranks, lambda one: one.come("step 0", 0))
    ranks[1].leave()
    ranks[1].leave()
    begin = time.monotonic()
    found = ranks[0].come("step 1", 1)
    assert time.monotonic() - begin < SOON_S / 2
    line = "minitrain: step 0: ranks, rank 1: at the end, while the others go on"
    assert line_of([found]) == line + ENDS
