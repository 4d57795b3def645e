"""The rules over a whole run, step after step: each fault is reported once.

A rule may first have something to note and later an alarm: both are reported.
"""

from collections.abc import Iterable

from minitrain.recording.alarm import Alarm, Rows
from minitrain.recording.format import Recording
from minitrain.recording.rules import alarms_at_end, alarms_at_start, alarms_of
from minitrain.recording.rules_of_inputs import batch_again, beside, padding, samples


class Judge:
    """Judges the rows of all ranks in the order of the run: headers, steps, ends."""

    def __init__(self) -> None:
        self._before: dict[int, Rows] = {}
        # by rule and severity: what may be meant does not hide what may not; and of
        # which tensors it was
        self._told: dict[tuple[str, bool], set[str]] = {}
        # when a rank read a batch first
        self._read: dict[int, int] = {}
        self._start: Rows = ()
        # the first step, of whichever optimizer
        self._first: Rows = ()
        # ranks that are at unlike places stay so, which explains who does not come
        self.is_apart = False

    def see(self, rows: Rows) -> list[Alarm]:
        """Return what is wrong here that was not reported before."""
        return self.new([] if self.is_apart else self._all(rows))

    def _all(self, rows: Rows) -> Iterable[Alarm]:
        kinds = {row["kind"] for row in rows}
        if kinds == {"recording"}:
            self._start = rows
            return alarms_at_start(rows)
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
        return [*found, *padding(rows, self._first)]

    def _read_again(self, rows: Rows) -> Iterable[Alarm]:
        # at any step before, as the first batch of an epoch is
        steps = {}
        for rank, row in enumerate(rows):
            if samples(row):
                key = hash((rank, row["optimizer"], *samples(row), *beside(row)))
                steps[rank] = self._read.setdefault(key, row["step"])
        ranks = [rank for rank, step in steps.items() if step < rows[rank]["step"]]
        return batch_again(rows, ranks, steps[ranks[-1]]) if ranks else []

    def new(self, found: Iterable[Alarm]) -> list[Alarm]:
        """Return those of ``found`` that were not reported before."""
        new = []
        for one in found:
            key = one.rule, one.severe
            told = self._told.get(key)
            # a few that are meant do not hide many that are not
            if told is None or len({*one.tensors} - told) > len(told):
                self._told[key] = {*(told or ()), *one.tensors}
                new.append(one)
        return new


def alarms_in(recording: Recording) -> dict[str, bool]:
    """Return lines of the rules, from the rows and from the run itself; True for
    alarms.
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
    # alarms of the run itself that the rows do not show, such as a missing rank
    again = {(one.rule, one.severe) for one in found}
    lines = {one.line: one.severe for one in found}
    for row in (row for one in ranks for row in one.alarms):
        severe = row["kind"] == "alarm"
        if (row["rule"], severe) not in again:
            lines[row["line"]] = severe
    return {line.removeprefix("minitrain: "): severe for line, severe in lines.items()}
