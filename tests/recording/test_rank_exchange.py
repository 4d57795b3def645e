"""Rows of real ranks, brought together and judged: whole, late, gone, out of step; and
meetings of ranks, at which all decide the same.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded_rows import own_of, rows_of

from minitrain.comm.groups import distributed
from minitrain.comm.torch_private import HashStore
from minitrain.harness.launcher import launch
from minitrain.recording import rank_exchange
from minitrain.recording.alarm import Alarm
from minitrain.recording.format import line_of
from minitrain.recording.rank_exchange import Meetings, RankExchange

# far above what two ranks need on a busy machine, and what a test waits for in vain
SOON_S, TIMEOUT_S = 20.0, 1.0
Row = dict[str, Any]


class Heard:
    def __init__(self, timeout_s: float, attempt: int = 0) -> None:
        self.lines: list[str] = []
        self.exchange = RankExchange(timeout_s, raises=False, attempt=attempt)
        self.exchange.write = self.write
        self.exchange.tell(self.exchange.missing)
        self.rank = dist.get_rank()

    def write(self, line: bytes) -> None:
        row = json.loads(line)
        self.lines.append(f"{row['kind']} {row['line'].removeprefix('minitrain: ')}")

    def send(self, step: int, **values: Any) -> None:
        """Send a row, as long as its rank and step make it."""
        row = rows_of(step, own_of(step, 2))[self.rank % 2]
        # ranks send unlike lengths
        long = {"more": "x" * 1000 * self.rank * step**2}
        self.send_row(row | long | values)

    def send_row(self, row: Row) -> None:
        self.exchange.send(row, line_of(row))

    def look(self, wait_s: float = SOON_S) -> list[str]:
        self.exchange.look(wait_s)
        found, self.lines = self.lines, []
        return found


@contextmanager
def heard(timeout_s: float = SOON_S) -> Iterator[Heard]:
    with distributed(timeout_s=60):
        one = Heard(timeout_s)
        try:
            yield one
        finally:
            one.exchange.close()
            one.exchange.close()


def sends_and_goes_on(world_size: int) -> list[list[str]]:
    with heard() as one:
        found = []
        for step in range(4):
            one.send(step, loss=0.0, unread=f"at {step}" if one.rank == 1 else "")
            found.append(one.look(0))
            # the run's own collectives go on
            mine = torch.full((3,), float(one.rank))
            dist.all_reduce(mine)
            assert mine.tolist() == [sum(range(world_size))] * 3
        found.append(one.look())
        assert not one.exchange._sent
        return found


def starts_again(world_size: int) -> list[str]:
    with distributed(timeout_s=60) as (rank, _):
        one = Heard(SOON_S)
        if rank == 1:
            one.send(0)
        dist.barrier()
        rank_exchange._numbers = count()
        one = Heard(SOON_S, attempt=1)
        for turn in range(world_size):
            if turn == rank:
                one.send(3)
                one.exchange.look()
            dist.barrier()
        return one.look()


def test_rows_of_the_attempt_before_are_left_alone() -> None:
    assert launch(starts_again, 2, 2) == [[], []]


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_hears_what_the_rows_of_all_show(world_size: int) -> None:
    line = "note note: step 0: inputs, rank 1: samples are not recorded: at 0"
    for found in launch(sends_and_goes_on, world_size, world_size):
        assert [row for told in found for row in told if "recorded" in row] == [line]


def late_by_a_second() -> tuple[float, list[str], int]:
    with heard() as one:
        dist.barrier()
        if one.rank == 1:
            time.sleep(1)
        begin = time.monotonic()
        for step in range(3):
            one.send(step)
            one.look(0)
        took, waiting = time.monotonic() - begin, len(one.exchange._sent)
        return took, one.look(), waiting


def test_no_rank_waits_for_one_that_is_late() -> None:
    (took, lines, waiting), _ = launch(late_by_a_second, 2)
    assert (took < 0.9, lines, waiting) == (True, [], 3)


def goes_on_without(late: int, last: bool) -> tuple[list[list[str]], str]:
    """What a rank hears if one is ``late`` at a step, or at the end, and comes."""
    with redirect_stderr(StringIO()) as printed, heard(TIMEOUT_S) as one:
        one.send(0)
        one.look()
        end = {"kind": "end", "steps": {"0": 1}, "forwards": 1}
        send = (lambda: one.send_row(end)) if last else (lambda: one.send(1))
        if one.rank != late:
            send()
            one.exchange.look(TIMEOUT_S + 0.1)
        found = [one.look(0), one.look(0)]
        dist.barrier()
        if one.rank == late:
            send()
        found.append(one.look())
        assert not one.exchange._sent
        return found, printed.getvalue()


# though it is the one that judges, rank 0
@pytest.mark.parametrize("late", [1, 0])
def test_a_rank_that_does_not_come_is_named_after_the_timeout(late: int) -> None:
    named = f"rank {late}: did not come to step 1 within 1 s; last heard of: step 0"
    found = launch(goes_on_without, 2, late, False)
    assert found[1 - late][0] == [[f"alarm step 1: ranks, {named}"], [], []]
    assert found[late][0] == [[], [], []]
    # by the first rank that is there
    assert [printed.count(named) for _, printed in found] == [late, 1 - late]


def test_a_rank_may_be_long_in_ending() -> None:
    (((line,), *_), _), _ = launch(goes_on_without, 2, 1, True)
    assert line.startswith("note note: step 1: ranks, rank 1: did not come to the end")
    assert "; last heard of: step 0; probable cause: slow to end; or rank 0 ran" in line


def sends_and_does_not_look() -> list[str]:
    with heard(TIMEOUT_S) as one:
        dist.barrier()
        for step in range(3):
            one.send(step)
        if one.rank == 1:
            # the one that is to judge does not either
            time.sleep(TIMEOUT_S + 0.2)
            one.exchange.look()
        dist.barrier()
        return one.look()


def test_a_rank_that_is_busy_and_has_sent_all_is_not_missing() -> None:
    assert launch(sends_and_does_not_look, 2) == [[], []]


def does_not_begin() -> tuple[float, list[str], bool]:
    with distributed(timeout_s=60) as (rank, _):
        begin, lines, has_all = time.monotonic(), [], True
        if rank == 0:
            one = Heard(TIMEOUT_S)
            one.send(0)
            lines, has_all = one.look() + one.look(), one.exchange.has_all
            one.exchange.close()
        took = time.monotonic() - begin
        dist.barrier()
        return took, lines, has_all


def test_a_rank_that_does_not_record_is_waited_for_once() -> None:
    (took, lines, has_all), _ = launch(does_not_begin, 2)
    what = "did not begin to record within 1 s: rows are not compared"
    assert lines == [f"note note: step 0: ranks, rank 1: {what}"]
    assert not has_all
    assert took < TIMEOUT_S + 5


def goes_on_without_a_group() -> int:
    with distributed(timeout_s=60):
        one = Heard(SOON_S)
        one.send(0)
    one.send(1)
    one.look()
    return len(one.exchange._sent)


def test_an_exchange_goes_on_after_the_run_left_its_groups() -> None:
    assert launch(goes_on_without_a_group, 2) == [0, 0]


def long_on_one() -> list[str]:
    with heard() as one:
        for step in range(2):
            one.send(step, more="x" * (8 << 20) * (one.rank == step == 1))
        return one.look()


def test_a_row_that_is_too_long_for_the_store_ends_the_comparison() -> None:
    """A TCPStore closes the connection of who sends 8 MiB at once."""
    what = "rows above 7 MiB: rows are not compared"
    assert launch(long_on_one, 2) == [[f"note note: step 1: ranks, rank 1: {what}"]] * 2


# meetings

Ranks = list[Meetings]
ENDS = "; sharded tensors need all ranks, so the recording ends here"


def ranks_of(world_size: int, timeout_s: float = SOON_S) -> Ranks:
    store = HashStore()
    return [Meetings(store, rank, world_size, timeout_s) for rank in range(world_size)]


def at_once(ranks: Ranks, do: Callable[[Meetings], Alarm | None]) -> list[Alarm | None]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [*pool.map(do, ranks)]


def line_for(found: list[Alarm | None]) -> str:
    assert found[0] is not None
    assert found == [found[0]] * len(found)
    return found[0].line


def test_ranks_at_the_same_place_agree_and_leave_no_keys() -> None:
    ranks = ranks_of(3)
    for step in range(20):
        found = at_once(ranks, lambda one, s=step: one.come(f"step {s}", s))
        assert found == [None] * 3
    # where each is, and the last meeting: come, and decided; HashStore counts one more
    assert ranks[0].store.num_keys() <= 3 + 2 + 1


def test_ranks_that_timed_out_decide_for_the_late_one() -> None:
    """Though all are there by then."""
    ranks = ranks_of(3, 0.3)
    early = at_once(ranks[:2], lambda one: one.come("step 5", 5))
    late = ranks[2].come("step 4", 4)
    line = "minitrain: step 5: ranks, rank 2: did not come to step 5 within 0.3 s"
    assert line_for([*early, late]) == line + ENDS


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
    assert line_for(found) == line + ENDS
