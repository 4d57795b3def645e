"""The rules at work while the run goes on: rows of all ranks in, alarms out."""

from collections.abc import Callable, Iterable

import torch.distributed as dist

from minitrain.core.errors import EvidenceError
from minitrain.core.printable import note
from minitrain.recording.alarm import Alarm
from minitrain.recording.exchange import Exchange
from minitrain.recording.findings import Judge
from minitrain.recording.format import Row, line_of


class Watch:
    """Of one rank: sends its rows to the others, and judges what has come of all.

    ``write`` gets the line of each alarm once, on every rank; rank 0 prints it. With
    ``raises``, an alarm that is no note ends the run on all ranks at the step in which
    it is found: for that they wait for each other at recorded steps.
    """

    def __init__(
        self, write: Callable[[bytes], None], timeout_s: float, raises: bool
    ) -> None:
        self._write, self._raises = write, raises
        self._judge = Judge()
        self._exchange: Exchange | None = None
        together = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank() if together else 0
        self._alone: list[list[Row]] = []
        if together and dist.get_world_size() > 1:
            self._exchange = Exchange(timeout_s)

    @property
    def has_all(self) -> bool:
        """Whether all ranks record."""
        return self._exchange is None or self._exchange.has_all

    def send(self, row: Row, line: bytes) -> None:
        """``row``, which is this ``line``, to all ranks; waits for none of them."""
        if self._exchange is None:
            self._alone.append([row])
        else:
            self._exchange.send(row, line)

    @property
    def is_whole(self) -> bool:
        """Whether ranks came together wherever they had to, so far."""
        meetings = None if self._exchange is None else self._exchange.meetings
        return meetings is None or not meetings.failed

    def meet(self, place: str, step: int, parts: str) -> bool:
        """Whether all ranks come to this ``place`` of the run, within the timeout, with
        the same ``parts``: what needs all of them may follow. Once one has not, they
        never do. EvidenceError where that ends the run.
        """
        meetings = None if self._exchange is None else self._exchange.meetings
        if meetings is None or meetings.failed:
            return meetings is None and self.has_all
        found = meetings.come(place, step, parts)
        self._tell([] if found is None else self._judge.new([found]))
        return found is None

    def meet_at_the_end(self, step: int) -> bool:
        """The same at the end. What a rank does that does not come, its last row says,
        or that there is none.
        """
        meetings = None if self._exchange is None else self._exchange.meetings
        if meetings is None or meetings.failed:
            return meetings is None and self.has_all
        found = meetings.come("the end", step, "")
        # the recording is whole but for what all are needed for
        meetings.failed = False
        return found is None

    def tell(self, found: Iterable[Alarm]) -> None:
        """Report what this rank found by itself, as each of the others does."""
        self._tell(self._judge.new(found))

    def look(self, wait_s: float = 0.0) -> None:
        """Judge what has come, or comes within ``wait_s``; EvidenceError where that
        ends the run.
        """
        self._tell(self._found(wait_s))

    def close(self) -> None:
        """Leave the others. Harmless to call twice."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def _found(self, wait_s: float) -> list[Alarm]:
        complete, self._alone = self._alone, []
        late = None
        if self._exchange is not None:
            complete = self._exchange.received(wait_s)
            late = self._exchange.missing()
        found = [alarm for rows in complete for alarm in self._judge.see(rows)]
        return found if late is None or self._judge.is_apart else [*found, late]

    def _tell(self, found: Iterable[Alarm]) -> None:
        ends = None
        for alarm in found:
            self._write(line_of(alarm.row()))
            if self._rank == self._speaker(alarm):
                note(alarm.line)
            if alarm.severe and self._raises and ends is None:
                ends = alarm.line
        if ends is not None:
            raise EvidenceError(ends)

    def _speaker(self, alarm: Alarm) -> int:
        """Rank 0, but of ranks that did not come the first that did."""
        if alarm.rule != "ranks" or self._exchange is None:
            return 0
        everyone = range(self._exchange.world_size)
        return next((rank for rank in everyone if rank not in alarm.ranks), 0)
