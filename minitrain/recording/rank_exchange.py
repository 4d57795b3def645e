"""Exchange between ranks while they record: rows for the rules, and barriers.

Each rank puts its rows into the store of the run's process group, without waiting for
the others, unless alarms are to end the run. With the rows of all ranks, rank 0 applies
the rules to a step and stores findings.

If parameters are sharded, gathering them is a collective in the run's own group, which
hangs or aborts if a rank is at another place of the run. So ranks first meet in a
barrier: each stores its place in the run. The first rank that has all places, or times
out, decides for all whether they agree; later ranks read the decision.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count

import torch.distributed as dist

from minitrain.comm.torch_private import HashStore, PrefixStore, Store
from minitrain.core.errors import EvidenceError
from minitrain.core.printable import print_note
from minitrain.recording.alarm import Alarm, against, page_on, position_of, unlike
from minitrain.recording.format import Row, line_of
from minitrain.recording.judge import Judge

# Keys in the store, by rank R, and number N of the meeting or row:
#   at R            [N, place]: the last meeting to which R came. Read to decide
#   meeting N       what the first to decide found: null, or an alarm. Read by all
#   meeting N came  how many came. The last one at meeting N + 1 deletes both
#   row N of R      the row (null for rank 0's own). Rank 0 reads and deletes it
#   judged N        [rows are not compared any more, findings]
#   heard N         number of ranks that have read "judged N"; the last deletes both

# a TCPStore takes 8 MiB at a time, and cuts the connection of a rank that sends more
MOST_BYTES = 7 << 20
TOO_LONG = '{"kind": "too long"}'
# recorders of a process are numbered, equally on all ranks
_numbers = count()
# keys are most often there at once; a longer wait must not take a core
POLL_S, FIRST_POLL_S = 0.005, 0.0001
# None in JSON, since a store takes an empty text for a missing key
AGREED = "null"
ENDS_HERE = "; sharded tensors need all ranks, so the recording ends here"


def wait_until(is_done: Callable[[], bool], limit_s: float) -> bool:
    """Poll ``is_done()``: return true once it is, false after ``limit_s`` seconds."""
    deadline, pause = time.monotonic() + limit_s, FIRST_POLL_S
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, POLL_S)
    return True


class Meetings:
    """Barriers of ``world_size`` ranks via ``store``, with a timeout, which check that
    all are at the same point of the run. All ranks must make the same calls in order.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout_s: float
    ) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.timeout_s = timeout_s
        self._number = 0

    def come(self, place: str, step: int) -> Alarm | None:
        """Wait for the other ranks, ``timeout_s`` seconds at most. Return None if all
        are at this ``place`` of the run; otherwise an alarm for ``step``, the same on
        all ranks, also on late ones. If the store is gone, an alarm on that.
        """
        key = f"meeting {self._number}"
        try:
            self.store.set(f"at {self.rank}", json.dumps([self._number, place]))
            is_last = self.store.add(f"{key} came", 1) == self.world_size
            is_decided = not is_last and wait_until(
                lambda: self.store.check([key]), self.timeout_s
            )
            found = None if is_decided else self._found(place, step)
            decided = self._decide(key, found)
            if is_last:
                # no rank reads the keys of the previous meeting any more
                for end in ("", " came"):
                    self.store.delete_key(f"meeting {self._number - 1}{end}")
        except RuntimeError:
            # the store ends with the rank that hosts it
            decided = Alarm("ranks", step, f"a rank has gone before {place}{ENDS_HERE}")
        self._number += 1
        return decided

    def _decide(self, key: str, found: Alarm | None) -> Alarm | None:
        # compare_set: the first decision holds
        mine = AGREED if found is None else json.dumps(vars(found))
        decided = json.loads(self.store.compare_set(key, "", mine))
        return None if decided is None else Alarm(**decided)

    def _found(self, place: str, step: int) -> Alarm | None:
        everyone = range(self.world_size)
        came = [rank for rank in everyone if self.store.check([f"at {rank}"])]
        written = self.store.multi_get([f"at {rank}" for rank in came])
        at = {rank: json.loads(one) for rank, one in zip(came, written, strict=True)}
        if late := [r for r in everyone if r not in at or at[r][0] < self._number]:
            what = f"did not come to {place} within {self.timeout_s:g} s{ENDS_HERE}"
            return Alarm("ranks", step, what, ranks=late)
        places = [at[rank][1] for rank in everyone]
        if ranks := unlike(places):
            what = f"at {against(places, ranks)}{ENDS_HERE}"
            return Alarm("steps", step, what, ranks=ranks)
        return None


class RankExchange:
    """Exchange of rows between ranks while they record. All ranks construct it at one
    point of the run, where they wait for each other, and send rows in the same order.

    ``write`` gets the line of each finding once, on every rank; rank 0 prints it. With
    ``raises``, an alarm that is no note raises EvidenceError on all ranks at the step
    in which it is found: for that they wait for each other at recorded steps. A rank is
    reported if its row is missing ``timeout_s`` seconds after this rank sent its own.
    ``attempt``: torchrun's number of the attempt, the same on all ranks.
    """

    def __init__(self, timeout_s: float, raises: bool, attempt: int = 0) -> None:
        self._raises, self.timeout_s = raises, timeout_s
        self.write: Callable[[bytes], None] = lambda line: None
        self._judge = Judge()
        # pages of docs/ that were printed
        self._pages: set[str] = set()
        self._rank, self._world_size = 0, 1
        self._store: Store = HashStore()
        if dist.is_available() and dist.is_initialized():
            self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
            world = dist.group.WORLD
            assert world is not None, "it is initialized"
            # torchrun keeps the store, and what is in it, for the next attempt
            name = f"minitrain recorder {next(_numbers)} of attempt {attempt}"
            self._store = PrefixStore(name, world.get_group_store())
        # rows of this rank without findings yet, each with its number and its time
        self._sent: deque[tuple[int, Row, float]] = deque()
        self._number = 0
        # step and place of the last row that was judged
        self._step, self._last_place = 0, "nothing"
        self._meetings = Meetings(self._store, self._rank, self._world_size, timeout_s)
        missing = self._meetings.come("the start", 0)
        # whether all ranks record, and the note to report if they do not
        self.has_all, self.missing = missing is None, list[Alarm]()
        # false once a meeting failed: no more collectives
        self.is_whole = True
        if missing is not None:
            what = f"did not begin to record within {timeout_s:g} s"
            what += ": rows are not compared"
            self.missing += [Alarm("ranks", 0, what, ranks=missing.ranks, severe=False)]

    def send(self, row: Row, line: bytes) -> None:
        """Store ``row``, encoded as ``line``, for rank 0, without waiting."""
        if self.has_all and not self._judge.is_apart:
            self._sent.append((self._number, row, time.monotonic()))
            text = TOO_LONG if len(line) > MOST_BYTES else line.decode()
            # rank 0 has its own row; the others only check that the key exists
            with suppress(RuntimeError):
                key = f"row {self._number} of {self._rank}"
                self._store.set(key, text if self._rank else "null")
            self._number += 1

    def meet(self, place: str, step: int) -> bool:
        """Return true if all ranks reach this ``place`` of the run within the timeout,
        so that collectives may follow; after a first failure, always false.

        Raises:
            EvidenceError: they do not, and ``raises`` is set.
        """
        if not (self.has_all and self.is_whole):
            return False
        found = self._meetings.come(place, step)
        self.is_whole = found is None
        self.tell([] if found is None else [found])
        return self.is_whole

    def meet_at_the_end(self, step: int) -> bool:
        """Return true if all ranks reach the end. Unlike :meth:`meet`, a rank that does
        not is reported later, when its last row is judged, or missing.
        """
        meets = self.has_all and self.is_whole
        return meets and self._meetings.come("the end", step) is None

    def tell(self, found: Iterable[Alarm]) -> None:
        """Report findings that need no other rank's rows; raises as :meth:`look`."""
        self._report(self._judge.new(found))

    def look(self, wait_s: float = 0.0) -> None:
        """Report new findings; wait ``wait_s`` seconds at most for the pending ones.

        Raises:
            EvidenceError: there is an alarm, and ``raises`` is set.
        """
        found: list[Alarm] = []
        try:
            wait_until(lambda: self._judge_or_read(found, wait_s > 0), wait_s)
            found += self._judge.new(self._late())
        except RuntimeError:
            # the store ends with the rank that hosts it
            what = f"a rank has gone; last heard of: {self._last_place}"
            gone = Alarm("ranks", self._step, what, severe=False)
            found += self._judge.new([gone] if self._sent else [])
        self._report(found)

    def close(self) -> None:
        """Leave the exchange; without a last row, the others report this rank."""
        self._sent.clear()
        # drop the store: its server, and its port, would stay as long as this object
        self._meetings.store = self._store = HashStore()

    def _judge_or_read(self, found: list[Alarm], waits: bool) -> bool:
        # handle complete rows, add findings to ``found``; true if nothing is awaited
        handle = self._read_findings if self._rank else self._judge_rows
        while self._sent:
            number, row, _ = self._sent[0]
            if not handle(number, row, found):
                return False
            self._step, self._last_place = _step_of(row), position_of(row)
            self._sent.popleft()
            if self._judge.is_apart:
                # for good: no more rows are compared
                self._sent.clear()
                self._number = number + 1
        # the store may end with rank 0, so at the end it waits until all have read
        last = f"judged {self._number - 1}"
        return self._rank > 0 or not waits or not self._store.check([last])

    def _judge_rows(self, number: int, row: Row, found: list[Alarm]) -> bool:
        # rank 0: judge the rows of all ranks; false if one is missing
        store = self._store
        keys = [f"row {number} of {rank}" for rank in range(self._world_size)]
        if not store.check(keys):
            return False
        rows = [row, *(json.loads(store.get(key)) for key in keys[1:])]
        if long := [n for n, one in enumerate(rows) if one["kind"] == "too long"]:
            what = f"rows above {MOST_BYTES >> 20} MiB: rows are not compared"
            new = [Alarm("ranks", _step_of(row), what, ranks=long, severe=False)]
            self._judge.is_apart = True
        else:
            new = self._judge.see(rows)
        # keep them now: the store may fail from here on
        found += new
        if self._world_size > 1:
            judged = [self._judge.is_apart, [vars(one) for one in new]]
            store.set(f"judged {number}", json.dumps(judged))
        for key in keys:
            store.delete_key(key)
        return True

    def _read_findings(self, number: int, row: Row, found: list[Alarm]) -> bool:
        # another rank: read the findings of rank 0; false if there are none yet
        store, key = self._store, f"judged {number}"
        if not store.check([key]):
            return False
        self._judge.is_apart, new = json.loads(store.get(key))
        found += self._judge.new(Alarm(**one) for one in new)
        # the last reader deletes it
        if store.add(f"heard {number}", 1) == self._world_size - 1:
            store.delete_key(f"heard {number}")
            store.delete_key(key)
        return True

    def _late(self) -> list[Alarm]:
        # return an alarm on ranks that have not sent a row ``timeout_s`` after this
        # one, for the first such row that rank 0 has not judged yet
        heard, now = self._last_place, time.monotonic()
        for number, row, since in self._sent:
            if now - since < self.timeout_s:
                break
            rows = [f"row {number} of {rank}" for rank in range(self._world_size)]
            behind = [n for n, one in enumerate(rows) if not self._store.check([one])]
            # rows that were judged have been deleted
            if behind and not self._store.check([f"judged {number}"]):
                what = f"did not come to {position_of(row)} within {self.timeout_s:g} s"
                what += f"; last heard of: {heard}"
                # no alarm at the end: a rank may still save, or evaluate
                is_end = row["kind"] == "end"
                cause = f"slow to end; or rank {self._rank} ran out of batches or "
                cause += "skipped one, and collectives of the others wait for it, or "
                cause = f"{cause}pair other batches" if is_end else ""
                step = _step_of(row)
                return [Alarm("ranks", step, what, cause, behind, severe=not is_end)]
            heard = position_of(row)
        return []

    def _report(self, found: Iterable[Alarm]) -> None:
        ends = None
        for one in found:
            self.write(line_of(one.row()))
            # rank 0; if it is missing, the first rank that is not
            missed = one.ranks if one.rule == "ranks" else []
            printer = next(rank for rank in count() if rank not in missed)
            if self._rank == printer:
                print_note(one.line)
                page = page_on(one.row())
                if page and page not in self._pages:
                    self._pages.add(page)
                    print_note(f"minitrain: see {page}")
            if one.severe and self._raises and ends is None:
                ends = one.line
        if ends is not None:
            raise EvidenceError(ends)


def _step_of(row: Row) -> int:
    return sum(row["steps"].values()) if row["kind"] == "end" else row.get("step", 0)
