"""Rows of all ranks, brought together while the run goes on.

In a group of its own, so no collective of the run meets one of these; by asynchronous
calls that are looked at and not waited for. What each rank has sent stands in the
group's store beside it: it says who does not come.
"""

import json
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.distributed.torch_private import group_by
from minitrain.record.alarm import Alarm, alarm, named
from minitrain.record.rules import place

POLL_S = 0.005
# of what a rank waits for, as long as the run itself may: who is slow can still come
NEVER = timedelta(days=1)
# every one of a process has another name, the same on all ranks
_numbers = count()


@dataclass
class _Mine:
    """A row that is on its way."""

    step: int
    place: str
    # a rank may be long in coming to its end: it saves, or evaluates
    last: bool
    data: Tensor
    since: float = field(default_factory=time.monotonic)


class Exchange:
    """Of the ranks of the default group; each makes it at the same point of the run and
    sends the same sequence of rows.

    Making it waits for the others, ``timeout_s`` at most; nothing else waits longer
    than it is told to. What does not come within ``timeout_s`` is said by
    :meth:`missing`.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.world_size = dist.get_world_size()
        self._rank = dist.get_rank()
        self._waiting: deque[_Mine] = deque()
        self._work: Any = None
        self._lengths: list[Tensor] = []
        self._parts: list[Tensor] = []
        self._complete: list[list[dict[str, Any]]] = []
        self._sent = 0
        self._heard: dict[int, tuple[int, str]] = {}
        self._lost = ""
        self._said = False
        self._group: Any = None
        name = f"minitrain recorder {next(_numbers)}"
        try:
            self._group = group_by(range(self.world_size), name, timeout_s)
        except RuntimeError:
            self._lost = f"no connection among the ranks within {timeout_s:g} s"

    def send(self, row: dict[str, Any]) -> None:
        """Send ``row`` to all; returns at once."""
        if self._group is None:
            return
        data = torch.frombuffer(bytearray(json.dumps(row).encode()), dtype=torch.uint8)
        step = int(row.get("step", 0))
        if row["kind"] == "end":
            step = sum(row["steps"].values())
        self._waiting.append(_Mine(step, place(row), row["kind"] == "end", data))
        self._sent += 1
        with suppress(RuntimeError):
            heard = json.dumps([self._sent, place(row)])
            self._group.get_group_store().set(f"sent by {self._rank}", heard)
        self._advance()

    def received(self, wait_s: float = 0.0) -> list[list[dict[str, Any]]]:
        """The sets that are complete and were not had before, each in rank order. Waits
        for what is on its way, ``wait_s`` seconds at most.
        """
        deadline = time.monotonic() + wait_s
        self._advance()
        while self._waiting and not self._lost and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self._advance()
        complete, self._complete = self._complete, []
        return complete

    def missing(self) -> Alarm | None:
        """Who has not come within the timeout, or has gone; said once. None else."""
        if self._said or not (self._lost or self._late()):
            return None
        if self._group is None:
            self._said = True
            what = f"{self._lost}: this rank's rows are not compared with theirs"
            return alarm("ranks", 0, what, severe=False)
        mine, ranks = self._awaited()
        if not (ranks or self._lost):
            # who sent its row and did not take the others' is busy, as in an evaluation
            return None
        self._said = True
        what = f"did not come to {mine.place} within {self.timeout_s:g} s"
        if self._lost:
            did = "all came to" if ranks else "all had the rows of"
            what = f"{self._lost} before {did} {mine.place}"
        if ranks:
            last = self._heard.get(ranks[0], (0, "nothing"))[1]
            what += f"; last heard of {named(ranks[:1])}: {last}"
        severe = bool(ranks) and not mine.last
        return alarm("ranks", mine.step, what, ranks=ranks, severe=severe)

    def close(self) -> None:
        """Leave the group; what is on its way is lost. Harmless to call twice."""
        group, self._group, self._work = self._group, None, None
        self._waiting.clear()
        if group is not None:
            # the run may have left all groups before
            with suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)
            # else its threads wait for what is on its way
            group.abort()

    def _advance(self) -> None:
        """Take what has come, and start what comes next: lengths, then rows. One after
        the other, so that all ranks call for the same in the same order.
        """
        while self._waiting and not self._lost:
            if self._work is None:
                mine = torch.tensor([len(self._waiting[0].data)])
                self._lengths = [torch.zeros_like(mine) for _ in range(self.world_size)]
                self._gather(self._lengths, mine)
            elif not self._work.is_completed():
                return
            elif self._went_well():
                self._next()

    def _gather(self, parts: list[Tensor], mine: Tensor) -> None:
        self._work = self._group.allgather(parts, mine, NEVER)

    def _went_well(self) -> bool:
        try:
            self._work.wait()
        except RuntimeError:
            self._lost = "a rank has gone"
        return not self._lost

    def _next(self) -> None:
        lengths = [int(length) for length in self._lengths]
        if not self._parts:
            mine = torch.zeros(max(lengths), dtype=torch.uint8)
            data = self._waiting[0].data
            mine[: len(data)] = data
            self._parts = [torch.empty_like(mine) for _ in lengths]
            self._gather(self._parts, mine)
            return
        parts = [part[:n] for part, n in zip(self._parts, lengths, strict=True)]
        self._complete.append([json.loads(part.numpy().tobytes()) for part in parts])
        self._waiting.popleft()
        self._work, self._parts = None, []

    def _late(self) -> list[int]:
        """Of the rows that wait those that do so for too long, by place."""
        since = time.monotonic() - self.timeout_s
        return [at for at, one in enumerate(self._waiting) if one.since < since]

    def _awaited(self) -> tuple[_Mine, list[int]]:
        """The first row that others have not sent, too, and who has not."""
        for at in [0] if self._lost else self._late():
            if ranks := self._behind(at):
                return self._waiting[at], ranks
        return self._waiting[0], []

    def _behind(self, place: int) -> list[int]:
        """The ranks that have not sent what this one waits for at ``place``."""
        done = self._sent - len(self._waiting) + place
        # the store goes with the rank that has it
        with suppress(RuntimeError):
            store = self._group.get_group_store()
            for rank in range(self.world_size):
                if store.check([f"sent by {rank}"]):
                    self._heard[rank] = tuple(json.loads(store.get(f"sent by {rank}")))
            everyone = range(self.world_size)
            return [r for r in everyone if self._heard.get(r, (0, ""))[0] <= done]
        return []
