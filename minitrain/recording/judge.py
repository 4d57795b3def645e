"""The judge of a run: it applies the rules to its rows, and reports each fault once."""

from collections.abc import Iterable

from minitrain.recording import rules_of_steps as of_steps
from minitrain.recording.alarm import Alarm, Row, Rows
from minitrain.recording.format import Recording
from minitrain.recording.rules import alarms_at_end, alarms_of
from minitrain.recording.rules_of_state import at_start


class Judge:
    """Apply the rules to a run: :meth:`see` gets headers, steps and ends in order.

    Of findings of one name, the first alarm and the first note are new. ``is_apart``:
    nothing more is compared, as ranks are at different steps, or a row was too long.
    """

    def __init__(self) -> None:
        self.is_apart = False
        # rules and severities reported so far
        self._told: set[tuple[str, bool]] = set()
        # the rows of the recorded step before, by optimizer
        self._before: dict[int, Rows] = {}
        # the first step that read a batch, by the hash of the batch
        self._read: dict[int, int] = {}
        self._start: Rows = ()
        # rows of the first step of any optimizer
        self._first: Rows = ()
        self._in_first_epoch = True

    def see(self, rows: Rows) -> list[Alarm]:
        """Return the new findings on ``rows``, the next row of each rank."""
        return self.new([] if self.is_apart else self._all(rows))

    def _all(self, rows: Rows) -> Iterable[Alarm]:
        kinds = {row["kind"] for row in rows}
        if kinds == {"recording"}:
            self._start = rows
            return at_start(rows)
        if kinds == {"end"}:
            return alarms_at_end(rows, [*self._before.values()], self._start)
        places = {(row["kind"], row.get("optimizer"), row.get("step")) for row in rows}
        self.is_apart = len(places) > 1
        if self.is_apart:
            return alarms_of(rows, None)
        before = self._before.get(rows[0]["optimizer"])
        self._before[rows[0]["optimizer"]] = rows
        self._first = self._first or rows
        found = [*alarms_of(rows, before), *self._read_again(rows)]
        return [*found, *self._padding(rows)]

    def _padding(self, rows: Rows) -> Iterable[Alarm]:
        # in the first epoch: a later one may end with these samples by chance
        if self._in_first_epoch:
            yield from of_steps.padding(rows, self._first)
            first, now = (
                {sample for row in some for sample in of_steps.samples(row)}
                for some in (self._first, rows)
            )
            self._in_first_epoch = rows is self._first or first.isdisjoint(now)

    def _read_again(self, rows: Rows) -> Iterable[Alarm]:
        # look at all earlier steps: a batch may return an epoch later
        steps = {}
        for rank, row in enumerate(rows):
            if read := of_steps.samples(row):
                batch = (rank, row["optimizer"], *read, *of_steps.beside(row))
                steps[rank] = self._read.setdefault(hash(batch), row["step"])
        ranks = [rank for rank, step in steps.items() if step < rows[rank]["step"]]
        return of_steps.batch_again(rows, ranks, steps[ranks[-1]]) if ranks else []

    def new(self, found: Iterable[Alarm]) -> list[Alarm]:
        """Return those findings in ``found`` that were not reported before."""
        new = []
        for one in found:
            if (key := (one.rule, one.severe)) not in self._told:
                self._told.add(key)
                new.append(one)
        return new


def alarms_in(recording: Recording) -> dict[str, bool]:
    """Map each line of :func:`findings_in` to true for an alarm, false for a note."""
    return {
        row["line"].removeprefix("minitrain: "): row["kind"] == "alarm"
        for row in findings_in(recording)
    }


def findings_in(recording: Recording) -> list[Row]:
    """Return all findings on a recording as rows, each once: from applying the rules
    now, if no rank is missing, and those recorded in the run, such as a stall.
    """
    ranks = [recording.ranks[rank] for rank in sorted(recording.ranks)]
    found = []
    if not recording.missing:
        judge = Judge()
        found += judge.see([one.header for one in ranks])
        for key in ranks[0].steps:
            rows = [one.steps[key] for one in ranks if key in one.steps]
            if len(rows) == len(ranks):
                found += judge.see(rows)
        if all(one.end for one in ranks):
            found += judge.see([one.end for one in ranks if one.end])
    again = {(one.rule, one.severe) for one in found}
    lines: dict[str, Row] = {one.line: one.row() for one in found}
    for row in (row for one in ranks for row in one.alarms):
        if (row["rule"], row["kind"] == "alarm") not in again:
            lines[row["line"]] = row
    return [*lines.values()]
