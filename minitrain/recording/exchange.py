"""Rows of all ranks, brought together while the run goes on.

In a group of its own, so no collective of the run meets one of these; by asynchronous
calls that are looked at and not waited for. What each rank has sent stands in the
group's store beside it: it says who does not come.
"""

import ctypes
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

from minitrain.comm.torch_private import group_by
from minitrain.recording.alarm import Alarm, alarm, in_ranks
from minitrain.recording.format import Row
from minitrain.recording.meetings import Meetings
from minitrain.recording.rules import place

# a set is most often there at once; who waits longer is not to take a core
POLL_S, FIRST_POLL_S = 0.005, 0.0001
# of what a rank waits for, as long as the run itself may: who is slow can still come
NEVER = timedelta(days=1)
# a row that is longer than the others so far takes a second call
ROOM, MORE = 1 << 12, 1.25
HEAD = 8
# every one of a process has another name, the same on all ranks
_numbers = count()


@dataclass
class _Mine:
    """A row that is on its way."""

    row: Row
    step: int
    place: str
    # a rank may be long in coming to its end: it saves, or evaluates
    last: bool
    data: bytes
    since: float = field(default_factory=time.monotonic)


class Exchange:
    """Of the ranks of the default group; each makes it at the same point of the run and
    sends the same sequence of rows.

    Making it waits for the others, ``timeout_s`` at most, as ``meetings`` do; nothing
    else waits longer than it is told to. Who has not sent a row ``timeout_s`` after
    this rank has is said by :meth:`missing`, to whoever asks then.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.world_size = dist.get_world_size()
        self._rank = dist.get_rank()
        self._waiting: deque[_Mine] = deque()
        self._complete: list[list[Row]] = []
        self._work: Any = None
        self._parts: list[Tensor] = []
        # as all ranks have it, for they see the same lengths
        self._room = ROOM
        self._sent = 0
        self._heard: dict[int, tuple[int, str]] = {}
        self._lost = ""
        self._said = False
        self._group: Any = None
        self.meetings: Meetings | None = None
        name = f"minitrain recorder {next(_numbers)}"
        try:
            self._group = group_by(range(self.world_size), name, timeout_s)
        except RuntimeError:
            self._lost = f"no connection among the ranks within {timeout_s:g} s"
            return
        self.meetings = Meetings(
            self._group.get_group_store(), self._rank, self.world_size, timeout_s
        )

    @property
    def has_all(self) -> bool:
        """Whether all ranks came."""
        return self._group is not None

    def send(self, row: Row, line: bytes) -> None:
        """Send ``row``, which is this ``line``, to all and wait for none;
        that it was sent is told to the store, which answers.
        """
        if self._group is None:
            return
        step = int(row.get("step", 0))
        if row["kind"] == "end":
            step = sum(row["steps"].values())
            self._meet_no_more()
        mine = _Mine(row, step, place(row), row["kind"] == "end", line)
        self._waiting.append(mine)
        self._sent += 1
        with suppress(RuntimeError):
            heard = json.dumps([self._sent, place(row)])
            self._group.get_group_store().set(f"sent by {self._rank}", heard)
        self._advance()

    def received(self, wait_s: float = 0.0) -> list[list[Row]]:
        """The sets that are complete and were not had before, each in rank order. Waits
        for what is on its way, ``wait_s`` seconds at most.
        """
        deadline = time.monotonic() + wait_s
        self._advance()
        pause = FIRST_POLL_S
        while self._waiting and not self._lost and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
            self._advance()
        complete, self._complete = self._complete, []
        return complete

    def missing(self) -> Alarm | None:
        """Who has not come within the timeout, or has gone; said once. None else."""
        if self._said:
            return None
        if self._group is None:
            what = f"{self._lost}: this rank's rows are not compared with theirs"
            found = alarm("ranks", 0, what, severe=False) if self._lost else None
        else:
            found = self._gone() if self._lost else self._late()
        self._said = found is not None
        return found

    def close(self) -> None:
        """Leave the group; what is on its way is lost. Harmless to call twice."""
        under_way = self._work is not None and not self._work.is_completed()
        self._meet_no_more()
        group, self._group, self._work = self._group, None, None
        self._waiting.clear()
        if group is not None:
            # the run may have left all groups before
            with suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)
            if under_way:
                # gloo aborts nothing: the end of the group would wait for the others
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def _meet_no_more(self) -> None:
        if self.meetings is not None:
            self.meetings.leave()

    def _advance(self) -> None:
        """Take what has come, and start what comes next: one after the other, so that
        all ranks call for the same in the same order.
        """
        while self._waiting and not self._lost:
            if self._work is None:
                self._gather(self._waiting[0].data, self._room)
            elif not self._work.is_completed():
                return
            elif self._went_well():
                self._take()

    def _gather(self, data: bytes, room: int) -> None:
        mine = torch.zeros(HEAD + room, dtype=torch.uint8)
        framed = len(data).to_bytes(HEAD, "little") + data[:room]
        mine[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
        self._parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        self._work = self._group.allgather(self._parts, mine, NEVER)

    def _went_well(self) -> bool:
        try:
            self._work.wait()
        except RuntimeError:
            self._lost = "a rank has gone"
        return not self._lost

    def _take(self) -> None:
        framed = [part.numpy().tobytes() for part in self._parts]
        lengths = [int.from_bytes(one[:HEAD], "little") for one in framed]
        if max(lengths) > len(framed[0]) - HEAD:
            self._room = int(MORE * max(lengths))
            self._gather(self._waiting[0].data, self._room)
            return
        mine = self._waiting.popleft().row
        pairs = enumerate(zip(framed, lengths, strict=True))
        self._complete.append(
            [
                mine if rank == self._rank else json.loads(one[HEAD : HEAD + length])
                for rank, (one, length) in pairs
            ]
        )
        self._work, self._parts = None, []

    def _late(self) -> Alarm | None:
        """Of ranks that have not sent what this one sent long ago."""
        late = time.monotonic() - self.timeout_s
        if not self._waiting or self._waiting[0].since > late:
            return None
        behind = {r: m for r, m in self._behind().items() if m.since <= late}
        if not behind:
            return None
        ranks = [*behind]
        mine = min(behind.values(), key=lambda one: one.since)
        what = f"did not come to {mine.place} within {self.timeout_s:g} s"
        what += f"; last heard of {in_ranks(ranks[:1])}: {self._last(ranks[0])}"
        cause = ""
        if mine.last:
            cause = f"slow to end; or rank {self._rank} ran out of batches or skipped "
            cause += "one, and collectives of the others wait for it, or pair other "
            cause += "batches"
        severe = not mine.last
        return alarm("ranks", mine.step, what, ranks=ranks, cause=cause, severe=severe)

    def _gone(self) -> Alarm:
        behind = self._behind()
        ranks = [*behind]
        mine = behind[ranks[0]] if ranks else self._waiting[0]
        did = "all came to" if ranks else "all had the rows of"
        what = f"{self._lost} before {did} {mine.place}"
        if ranks:
            what += f"; last heard of {in_ranks(ranks[:1])}: {self._last(ranks[0])}"
        severe = bool(ranks) and not mine.last
        return alarm("ranks", mine.step, what, ranks=ranks, severe=severe)

    def _last(self, rank: int) -> str:
        return self._heard.get(rank, (0, "nothing"))[1]

    def _behind(self) -> dict[int, _Mine]:
        """The ranks that have not sent all that this one has, and the first of it that
        they have not.
        """
        done = self._sent - len(self._waiting)
        behind = {}
        others = [rank for rank in range(self.world_size) if rank != self._rank]
        try:
            store = self._group.get_group_store()
            for rank in others:
                if store.check([f"sent by {rank}"]):
                    count, where = json.loads(store.get(f"sent by {rank}"))
                    self._heard[rank] = count, where
        except RuntimeError:
            # the store goes with the rank that has it
            return {}
        for rank in others:
            count = self._heard.get(rank, (0, ""))[0]
            if count < self._sent:
                behind[rank] = self._waiting[max(0, count - done)]
        return behind
