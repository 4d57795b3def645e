"""Rows of real ranks, brought together: whole, late, cut off, and out of step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from recorded_rows import headers, own_of, rows_of

from minitrain.comm.groups import distributed
from minitrain.harness.launcher import launch
from minitrain.recording.alarm import Alarm
from minitrain.recording.exchange import Exchange
from minitrain.recording.findings import Judge
from minitrain.recording.format import line_of

# far above what two ranks need on a busy machine, and what a test waits for in vain
SOON_S = 20.0
TIMEOUT_S = 1.0
# how late a rank comes that nobody is to wait for
LATE_S = 6.0


@contextmanager
def exchange_of(timeout_s: float = SOON_S) -> Iterator[tuple[Exchange, int]]:
    with distributed(timeout_s=60) as (rank, _):
        exchange = Exchange(timeout_s)
        try:
            yield exchange, rank
        finally:
            exchange.close()
            exchange.close()


def send(exchange: Exchange, row: dict[str, Any]) -> None:
    exchange.send(row, line_of(row))


def row_of(rank: int, world_size: int, step: int) -> dict[str, Any]:
    row = rows_of(step, own_of(step, world_size))[rank]
    # ranks send unlike lengths
    return row | {"rank": rank, "not_held": ["x" * (1 + 1000 * rank * step**2)]}


def all_rows(world_size: int, steps: int) -> list[list[dict[str, Any]]]:
    with exchange_of() as (exchange, rank):
        found = []
        for step in range(steps):
            send(exchange, row_of(rank, world_size, step))
            found += exchange.received()
            # the run's own collectives go on
            mine = torch.full((3,), float(rank))
            dist.all_reduce(mine)
            assert mine.tolist() == [sum(range(world_size))] * 3
        found += exchange.received(SOON_S)
        assert exchange.missing() is None
        assert exchange.received() == []
        return found


def test_every_rank_has_the_rows_of_all() -> None:
    for world_size in (2, 3):
        sets = [
            [row_of(rank, world_size, step) for rank in range(world_size)]
            for step in range(4)
        ]
        assert launch(all_rows, world_size, world_size, 4) == [sets] * world_size


def sends_and_goes_on() -> tuple[float, int, int]:
    with exchange_of() as (exchange, rank):
        dist.barrier()
        if rank == 1:
            time.sleep(1)
        begin = time.monotonic()
        for step in range(3):
            send(exchange, row_of(rank, 2, step))
        took = time.monotonic() - begin
        early = len(exchange.received())
        return took, early, len(exchange.received(SOON_S))


def test_nobody_waits_for_a_rank_that_is_late() -> None:
    (took, early, later), _ = launch(sends_and_goes_on, 2)
    assert took < 0.9
    assert (early, later) == (0, 3)


def goes_on_without(timeout_s: float) -> tuple[float, Alarm | None, bool, int]:
    with exchange_of(timeout_s) as (exchange, rank):
        send(exchange, row_of(rank, 2, 0))
        exchange.received(SOON_S)
        begin = time.monotonic()
        if rank == 0:
            send(exchange, row_of(rank, 2, 1))
            exchange.received(timeout_s + 0.1)
        alarm, again = exchange.missing(), exchange.missing()
        took = time.monotonic() - begin
        dist.barrier()
        if rank == 1:
            # it was late, and comes
            send(exchange, row_of(rank, 2, 1))
        came = len(exchange.received(SOON_S))
        return took, alarm, again is None, came


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    (took, alarm, once, came), (_, none, _, _) = launch(goes_on_without, 2, TIMEOUT_S)
    assert alarm is not None
    assert alarm.line == (
        "minitrain: step 1: ranks, rank 1: did not come to step 1 within 1 s; last "
        "heard of rank 1: step 0"
    )
    assert (alarm.rule, alarm.step, alarm.ranks) == ("ranks", 1, [1])
    assert alarm.severe
    assert once
    assert none is None
    assert TIMEOUT_S <= took < TIMEOUT_S + 5
    assert came == 1


def sends_and_does_not_look(timeout_s: float) -> tuple[Alarm | None, int]:
    with exchange_of(timeout_s) as (exchange, rank):
        dist.barrier()
        for step in range(3):
            send(exchange, row_of(rank, 2, step))
        early = 0
        if rank == 0:
            early = len(exchange.received(timeout_s + 0.2))
        alarm = exchange.missing()
        dist.barrier()
        return alarm, early + len(exchange.received(SOON_S))


def test_a_rank_that_is_busy_and_has_sent_all_is_not_missing() -> None:
    (alarm, count), (none, _) = launch(sends_and_does_not_look, 2, TIMEOUT_S)
    assert (alarm, none) == (None, None)
    assert count == 3


def waits_for_the_end(timeout_s: float) -> Alarm | None:
    with exchange_of(timeout_s) as (exchange, rank):
        send(exchange, row_of(rank, 2, 0))
        exchange.received(SOON_S)
        if rank == 0:
            send(exchange, {"kind": "end", "steps": {"0": 1}, "forwards": 1})
            exchange.received(timeout_s + 0.1)
        alarm = exchange.missing()
        dist.barrier()
        return alarm


def test_a_rank_that_is_long_in_ending_is_worth_a_note() -> None:
    alarm, _ = launch(waits_for_the_end, 2, TIMEOUT_S)
    assert alarm is not None
    assert not alarm.severe
    assert "rank 1: did not come to the end within 1 s" in alarm.line


def does_not_begin(timeout_s: float) -> tuple[float, Alarm | None, int]:
    with distributed(timeout_s=60) as (rank, _):
        begin = time.monotonic()
        alarm, count = None, 0
        if rank == 0:
            exchange = Exchange(timeout_s)
            send(exchange, row_of(rank, 2, 0))
            alarm, count = exchange.missing(), len(exchange.received(SOON_S))
            exchange.close()
        took = time.monotonic() - begin
        dist.barrier()
        return took, alarm, count


def test_a_rank_that_does_not_record_is_waited_for_once() -> None:
    (took, alarm, count), _ = launch(does_not_begin, 2, TIMEOUT_S)
    assert alarm is not None
    assert "no connection among the ranks within 1 s" in alarm.line
    assert not alarm.severe
    assert count == 0
    assert took < TIMEOUT_S + 5


def leaves_early() -> Alarm | None:
    with exchange_of() as (exchange, rank):
        send(exchange, row_of(rank, 2, 0))
        exchange.received(SOON_S)
        if rank == 1:
            return None
        send(exchange, row_of(rank, 2, 1))
        begin = time.monotonic()
        exchange.received(SOON_S)
        assert time.monotonic() - begin < SOON_S / 2
        return exchange.missing()


def test_a_rank_that_ends_early_is_named_at_once() -> None:
    alarm, _ = launch(leaves_early, 2)
    assert alarm is not None
    assert alarm.ranks == [1]
    assert "a rank has gone before all came to step 1" in alarm.line
    assert alarm.line.endswith("last heard of rank 1: step 0")


def judged(rows: list[list[dict[str, Any]]]) -> list[str]:
    with exchange_of() as (exchange, rank):
        for row in rows[rank]:
            send(exchange, row)
        judge = Judge()
        sets = exchange.received(SOON_S)
        return [alarm.line for rows in sets for alarm in judge.see(rows)]


def test_ranks_with_unlike_models_are_told_apart() -> None:
    first, second = headers(2)
    second["parameters"] = {"other": {"shape": [2], "dtype": "float32"}}
    steps = rows_of(0, own_of(0, 2))
    steps[1] |= {"gradients": {}, "own": {}, "parameters": {}, "before": {}}
    sent = [[first, steps[0]], [second, steps[1]]]
    found = launch(judged, 2, sent)
    assert found[0] == found[1]
    assert found[0][0].startswith(
        "minitrain: step 0: model, tensor embedding, rank 1: "
    )
    assert "unlike models" in found[0][0]


def test_a_rank_that_makes_fewer_steps_is_named() -> None:
    ends = [{"kind": "end", "steps": {"0": n}, "forwards": n} for n in (2, 1)]
    rows = [rows_of(step, own_of(step, 2)) for step in (0, 1)]
    sent = [[rows[0][0], rows[1][0], ends[0]], [rows[0][1], ends[1]]]
    found = launch(judged, 2, [sent[0][:2], sent[1]])
    for lines in found:
        assert len(lines) == 1
        assert "steps, rank 1: at the end, while the others are at step 1" in lines[0]


def closes_with_a_row_on_its_way() -> float:
    with distributed(timeout_s=60) as (rank, _):
        exchange = Exchange(SOON_S)
        send(exchange, row_of(rank, 2, 0))
        exchange.received(SOON_S)
        if rank == 0:
            send(exchange, row_of(rank, 2, 1))
        else:
            time.sleep(LATE_S)
        begin = time.monotonic()
        exchange.close()
        took = time.monotonic() - begin
        dist.barrier()
        return took


def test_closing_waits_for_nobody() -> None:
    assert max(launch(closes_with_a_row_on_its_way, 2)) < LATE_S / 2


def after_the_run_left_its_groups() -> int:
    with distributed(timeout_s=60) as (rank, _):
        exchange = Exchange(SOON_S)
        send(exchange, row_of(rank, 2, 0))
        dist.barrier()
    send(exchange, row_of(rank, 2, 1))
    count = len(exchange.received(SOON_S))
    exchange.close()
    return count


def test_rows_come_after_the_run_left_its_groups() -> None:
    assert launch(after_the_run_left_its_groups, 2) == [2, 2]


def several(rounds: int) -> list[int]:
    with distributed(timeout_s=60) as (rank, _):
        counts = []
        for number in range(rounds):
            exchange = Exchange(SOON_S)
            send(exchange, row_of(rank, 2, number))
            group = dist.new_group([0, 1])
            counts.append(len(exchange.received(SOON_S)))
            exchange.close()
            dist.all_reduce(torch.zeros(1), group=group)
        return counts


def test_one_exchange_after_another_beside_groups_of_the_run() -> None:
    assert launch(several, 2, 3) == [[1, 1, 1]] * 2
