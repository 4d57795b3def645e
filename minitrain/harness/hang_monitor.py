"""Looks at all ranks several times a second, and says which one does not go on.

A wait has one limit, which a rank tells when it joins the others. When a rank has been
at one place for so long, or gave up waiting, the watch finds out who is missing: who
is stopped, who stands elsewhere than in a wait, who is behind. It sees, too, who ended
first: torchrun then ends the others, and those are not the cause, however they end.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from minitrain.comm import heartbeat as place
from minitrain.comm.heartbeat import STARTUP_S, Place, Seen
from minitrain.core.errors import RankError
from minitrain.harness import stack_dump as stack
from minitrain.harness.failures import name_of
from minitrain.harness.processes import end, end_group, state_of

POLL_S = 0.1
# a longer pause between two looks was one of this process, too: Ctrl-Z, a laptop's lid
PAUSE_S = 1.0
# a rank that is asked just when it gives up has left a farewell by then
FAREWELL_S = 0.3
# limit for a rank that is stopped before it has set its own
STOPPED_S = 30.0
# where a rank may be as long as it likes: what runs there need not mark steps
UNWATCHED = "start"
# from the end of a rank that had more to do to that of the others; torchrun waits for
# them ten times as long, and for ever where the exit code is 0
BURIED_S = 3.0
# for what is asked of another host to be answered yet, when nobody needs the answer
ASKED_S = 0.5


@dataclass
class _Rank:
    """What the watch knows of one rank; times in seconds that it was watched."""

    number: int
    pid: int
    place: Place | None = None
    last: Seen | None = None
    unchanged_s: float = 0.0
    stopped_s: float = 0.0
    gone_s: float = 0.0

    def look(self, folder: Path, passed_s: float) -> None:
        if self.place is None:
            self.place = place.find_place(place.file_of(folder, self.number))
        seen = None if self.place is None else self.place.look()
        same = seen and self.last and seen[:3] == self.last[:3]
        self.unchanged_s = self.unchanged_s + passed_s if same else 0.0
        self.last = seen
        stopped = state_of(self.pid) == "T"
        self.stopped_s = self.stopped_s + passed_s if stopped else 0.0
        self.gone_s = self.gone_s + passed_s if self.has_ended else 0.0

    @property
    def limit_s(self) -> float:
        set_s = (self.last.limit_s if self.last else 0) or STOPPED_S
        starts = self.last is not None and self.last.phase == "setup"
        # a stopped rank is not a slow one
        return max(set_s, STARTUP_S) if starts and not self.stopped_s else set_s

    @property
    def waited_s(self) -> float:
        watched = self.last is not None and self.last.phase != UNWATCHED
        unchanged_s = self.unchanged_s if watched else 0.0
        return self.stopped_s or unchanged_s

    @property
    def can_answer(self) -> bool:
        # at its very end Python takes the answer back, and the question would kill
        at_work = self.last is not None and self.last.phase != "end"
        return at_work and not self.leaving and state_of(self.pid) not in "TZX"

    @property
    def has_ended(self) -> bool:
        return state_of(self.pid) in ("Z", "X", "")

    @property
    def is_done(self) -> bool:
        return self.last is not None and self.last.phase in place.AFTER

    @property
    def leaving(self) -> str:
        return self.last.leaving if self.last else ""

    @property
    def gave_up(self) -> bool:
        return self.leaving == "gave up"


class Watch:
    """Watches the ranks that meet in ``folder``; ``pids`` tells their processes, and
    ``elsewhere`` whether those of another host have ended.
    """

    def __init__(
        self,
        folder: Path,
        pids: Callable[[], Mapping[int, int]],
        elsewhere: Callable[[], bool] | None = None,
    ) -> None:
        self._folder = folder
        self._elsewhere = elsewhere
        self._ended_there = threading.Event()
        self._pids = pids
        self._ranks: dict[int, _Rank] = {}
        self._looked_s = time.monotonic()
        self.verdict: RankError | None = None
        # the ranks that ended with more to do, before anybody could end them for it
        self.first: set[int] = set()
        # ranks were ended because those of another host had: all but the first, if any
        self.followed = False

    def look(self) -> RankError | None:
        """Who hangs, as soon as somebody does, and nobody has ended."""
        now = time.monotonic()
        passed_s = now - self._looked_s
        self._looked_s = now
        for number, pid in self._pids().items():
            self._ranks.setdefault(number, _Rank(number, pid))
        # those, too, that have answered: they are on their way out
        for rank in self._ranks.values():
            rank.look(self._folder, 0.0 if passed_s > PAUSE_S else passed_s)
        ranks = self._at_work()
        if gone := [rank for rank in ranks if rank.has_ended]:
            # its end is the cause, and is reported by whoever waits for it
            self.first = self.first or {rank.number for rank in gone}
            return None
        late = [r for r in ranks if r.waited_s >= r.limit_s]
        alone = len(ranks) == 1 and ranks[0].gave_up
        # what a rank says that waited for one that left is all there is to say
        if late or (any(rank.gave_up for rank in ranks) and not alone):
            limit = max(r.limit_s for r in late or ranks if late or r.gave_up)
            self.verdict = self.blame(limit)
        return self.verdict

    def _is_over(self) -> bool:
        """Whether a rank ended with more to do, and the others had time to say why."""
        return any(rank.gone_s >= BURIED_S for rank in self._at_work())

    def _until_one_ends(self) -> None:
        """Wait until a rank ends that had not ended before, :data:`POLL_S` at most."""
        fds = []
        for rank in self._ranks.values():
            with suppress(OSError):
                fds += [] if rank.has_ended else [os.pidfd_open(rank.pid)]
        try:
            # of no process at all it would not wait
            wait(fds, POLL_S) if fds else time.sleep(POLL_S)
        finally:
            for fd in fds:
                os.close(fd)

    def _at_work(self) -> list[_Rank]:
        ranks = self._ranks.values()
        return [r for r in ranks if not (r.has_ended and r.is_done)]

    def blame(self, waited_s: float) -> RankError:
        """The rank that did not come while others waited ``waited_s`` seconds."""
        for rank in self._ranks.values():
            rank.look(self._folder, 0.0)
        ranks = self._at_work()
        asked = [r for r in ranks if r.can_answer]
        stacks = stack.ask(
            {r.pid: stack.file_of(self._folder, r.number) for r in asked}
        )
        time.sleep(FAREWELL_S)
        for rank in ranks:
            rank.look(self._folder, 0.0)
            if rank.leaving:
                stacks[rank.pid] = stack.farewell(self._folder, rank.number)
        guilty = _guilty(ranks, stacks)
        error = RankError(_sentence(guilty, ranks, stacks, waited_s))
        first = guilty[0]
        error.what = "stopped" if first.stopped_s else "hung"
        error.of_another = not any(sign(first) for sign in _signs(stacks))
        error.step = None if first.last is None else first.last.step
        return error

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Look from a thread while the body runs, at once when a rank ends; who hangs
        is ended with all others, and :attr:`verdict` says who it was. Where one ended
        with more to do, here or elsewhere, so do the others soon.
        """
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                self._until_one_ends()
                over_here = self.look() is not None or self._is_over()
                self.followed = not over_here and self._ended_there.is_set()
                if over_here or self.followed:
                    for rank in self._ranks.values():
                        # of one that has ended the number may be another's by now
                        (end_group if rank.has_ended else end)(rank.pid)
                    return

        thread = threading.Thread(target=watch, name="watch", daemon=True)
        thread.start()
        asks = None
        if ask := self._elsewhere:
            # another host may take long to answer, and this one is watched meanwhile
            asks = threading.Thread(
                target=self._ask, args=(ask, over), name="ask other hosts", daemon=True
            )
            asks.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            if asks is not None:
                # not for the answer, which may never come
                asks.join(ASKED_S)

    def _ask(self, elsewhere: Callable[[], bool], over: threading.Event) -> None:
        """Note that the ranks of another host have ended, once they have."""
        while not over.wait(POLL_S):
            # who cannot tell may be able to later; the ranks here are watched anyhow
            with suppress(Exception):
                if elsewhere():
                    self._ended_there.set()
                    return


def _signs(stacks: Mapping[int, stack.Stack]) -> list[Callable[[_Rank], bool]]:
    """That others wait for a rank and it for nobody, the surest first."""
    return [
        lambda rank: rank.stopped_s > 0,
        lambda rank: rank.place is None,
        lambda rank: rank.pid not in stacks,
        lambda rank: not (rank.leaving or stacks.get(rank.pid, stack.Stack()).waits),
    ]


def _guilty(ranks: list[_Rank], stacks: Mapping[int, stack.Stack]) -> list[_Rank]:
    """Those that the others wait for: by the surest sign that there is."""
    for sign in _signs(stacks):
        found = [rank for rank in ranks if sign(rank)]
        # what holds for all of several tells nothing
        if found and (len(found) < len(ranks) or len(ranks) == 1):
            return found
    return ranks


def _sentence(
    guilty: list[_Rank],
    ranks: list[_Rank],
    stacks: Mapping[int, stack.Stack],
    waited_s: float,
) -> str:
    first, *more = guilty
    silent = f"no answer within {waited_s:g} s"
    if len(guilty) == len(ranks) > 1:
        # the calls of some do not fit those of others; nobody knows whose are wrong
        together: dict[str, list[_Rank]] = {}
        for rank in ranks:
            together.setdefault(_where(rank, stacks), []).append(rank)
        few_first = sorted(together.items(), key=lambda item: len(item[1]))
        each = [f"{_ranks(who)} {at}".rstrip() for at, who in few_first]
        return f"{silent} from any rank: {'; '.join(each)}"
    how = "stopped (as by SIGSTOP)" if first.stopped_s else "hangs"
    line = f"{name_of(first.number, first.pid)}: {silent}, {how}"
    if at := _where(first, stacks):
        line += f" {at}"
    if more:
        line += f"; {_ranks(more)} too"
    return line


def _ranks(several: list[_Rank]) -> str:
    numbers = ", ".join(str(rank.number) for rank in several)
    return f"rank{'s' if len(several) > 1 else ''} {numbers}"


def _where(rank: _Rank, stacks: Mapping[int, stack.Stack]) -> str:
    at = "before it began" if rank.last is None else str(rank.last)
    return ", ".join(filter(None, [at, str(stacks.get(rank.pid, ""))]))
