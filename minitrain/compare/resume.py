"""A resumed run and the uninterrupted one: aligned where their parameters are equal.

A resumed run counts its steps from 0. It starts with the parameters that the other run
had before some later step, and from there on both should be equal to the bit.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from minitrain.compare.align import Place, samples
from minitrain.compare.clauses import (
    OPTIMIZER_LOST,
    POSITION_LOST,
    SCHEDULER_LOST,
    order_lost,
)
from minitrain.compare.difference import Unlike
from minitrain.recording.format import OfRank, Recording

Counts = Counter[str]


@dataclass(frozen=True)
class Resumed:
    """Both recordings from the ``step`` on at which ``side`` starts, with the steps of
    the other. ``read`` are the samples of the other run, by step.
    """

    a: Recording
    b: Recording
    side: str
    step: int
    read: dict[int, Counts]

    @property
    def clause(self) -> str:
        """The alignment, for the reader."""
        other = "A" if self.side == "B" else "B"
        return f"{self.side} resumes {other} at step {self.step}: compared from there"

    def cause(self, place: Place, first: Unlike) -> str:
        """The probable cause of the ``first`` difference after a resume."""
        if first.what == "data":
            mine = samples(place.b if self.side == "B" else place.a)
            again = [step for step, read in self.read.items() if read == mine]
            return order_lost(self.side, again[0]) if again else POSITION_LOST
        kept = [place.a[x]["moments"] == place.b[y]["moments"] for x, y in place.pairs]
        if first.what == "learning rate":
            return SCHEDULER_LOST if all(kept) else f"{OPTIMIZER_LOST}, with its rate"
        lost = first.what in ("parameters", "optimizer state") and not all(kept)
        return OPTIMIZER_LOST if lost and place.step == self.step else first.cause


def resumed_in(a: Recording, b: Recording) -> Resumed | None:
    """Find which of two recordings resumes the other one, by its parameters."""
    for side, resumed, straight in (("B", b, a), ("A", a, b)):
        for step in _starts(resumed, straight):
            cut, moved = _from(straight, step), _shifted(resumed, step)
            pair = (cut, moved) if side == "B" else (moved, cut)
            rows = straight.ranks.values()
            steps = sorted({key for one in rows for key in one.steps})
            read = {
                number: samples(
                    {
                        rank: one.steps[optimizer, number]
                        for rank, one in straight.ranks.items()
                        if (optimizer, number) in one.steps
                    }
                )
                for optimizer, number in steps
                if optimizer == 0
            }
            return Resumed(*pair, side, step, read)
    return None


def _starts(resumed: Recording, straight: Recording) -> Iterator[int]:
    """Steps of ``straight`` that begin as the first of ``resumed`` does."""
    first = resumed.ranks[min(resumed.ranks)].steps.get((0, 0))
    rows = straight.ranks[min(straight.ranks)].steps
    begin = rows.get((0, 0))
    if first is None or begin is None or begin["before"] == first["before"]:
        return
    for (optimizer, step), row in rows.items():
        if optimizer == 0 and row["before"] and row["before"] == first["before"]:
            yield step


def _from(straight: Recording, step: int) -> Recording:
    ranks = {}
    for rank, one in straight.ranks.items():
        kept = {key: row for key, row in one.steps.items() if key[1] >= step}
        before = one.steps.get((0, step))
        start = before["before"] if before else one.header["start"]
        ranks[rank] = replace(one, header={**one.header, "start": start}, steps=kept)
    return replace(straight, ranks=ranks)


def _shifted(resumed: Recording, step: int) -> Recording:
    return replace(
        resumed,
        ranks={rank: _moved(one, step) for rank, one in resumed.ranks.items()},
    )


def _moved(one: OfRank, by: int) -> OfRank:
    steps = {
        (optimizer, step + by): {**row, "step": step + by}
        for (optimizer, step), row in one.steps.items()
    }
    end = one.end
    if end is not None:
        counts = {key: count + by for key, count in end["steps"].items()}
        end = {**end, "steps": counts}
    return replace(one, steps=steps, end=end)
