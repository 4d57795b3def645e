"""Straggler detection: ranks that are slower than the others, and by how much.

Ranks synchronize in every step, so a step takes as long as its slowest rank while the
others wait. Ranks are therefore compared by their own work, before any waiting. The
input are rows of :mod:`minitrain.train.clock`, defined in docs/reference/times.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitrain.analysis.account import (
    EXPOSED,
    INTERVAL,
    OPTIMIZER_COMM,
    TO_LAST,
    Columns,
    Floats,
    Table,
    by_step_and_rank,
    columns_of,
    numbers,
    plain_steps,
    rows_where,
    slowest,
    summarized,
)

# share of a step by which identical arms differ (studies/noise)
FLOOR = 0.05
# allowed share of runs with a false alarm: a rank within that floor is flagged
FALSE_ALARMS = 0.01
OWN = ("data_ms", "forward_ms", "other_ms", "optimizer_ms")


@dataclass(frozen=True)
class Lag:
    """Excess of a rank's own work over the others' median, in milliseconds per step.

    ``excess_ms`` is the median over the steps, with 90 % confidence between ``low_ms``
    and ``high_ms``. ``visible_ms`` is the smallest excess that these steps would have
    detected; ``called`` is True for a straggler.
    """

    rank: int
    excess_ms: float
    low_ms: float
    high_ms: float
    visible_ms: float
    called: bool


@dataclass(frozen=True)
class Stragglers:
    """Comparison of the ranks of a run, over ``num_steps`` steps.

    ``lags`` lists all ranks, the slowest first. If it is empty, ``undecided`` is the
    reason as a clause, else None. ``others_wait_ms`` is how much longer per step the
    other ranks wait than the slowest; None if no rank is slow or waiting was not timed.
    ``step_ms`` is the median time of steps without extra measurements, or None.
    """

    lags: Sequence[Lag]
    others_wait_ms: float | None
    step_ms: float | None
    num_steps: int
    undecided: str | None

    @property
    def slow(self) -> list[Lag]:
        """The stragglers, the slowest first."""
        return [lag for lag in self.lags if lag.called]

    @property
    def visible_ms(self) -> float | None:
        """Smallest excess that is detected on every rank; None if undecided."""
        return max((lag.visible_ms for lag in self.lags), default=None)

    def numbers(self) -> dict[str, Any]:
        """Return the result as a dictionary, for metrics/timing.json."""
        shown = ("rank", "excess_ms", "low_ms", "high_ms")
        keys = ("others_wait_ms", "visible_ms", "step_ms", "num_steps", "undecided")
        slow = [{key: getattr(lag, key) for key in shown} for lag in self.slow]
        return {"slow": slow, **{key: getattr(self, key) for key in keys}}


def find_stragglers(
    timings: Table, num_warmup_steps: int, *, waits_within: bool = False
) -> Stragglers:
    """Find the ranks that are slower than the others in the steps of :func:`own_work`.

    A rank is a straggler if it exceeds the others by more than ``FLOOR`` of a step in
    more steps than chance explains: a sign test (Dixon and Mood 1946), which assumes
    independent steps but no distribution of the noise. At most ``FALSE_ALARMS`` of the
    runs report a rank within the floor, all ranks together.

    ``timings`` is described in :func:`minitrain.analysis.account.summarized`,
    ``waits_within`` in :class:`minitrain.sync.guarantees.Guarantees`: if set, only
    bracketed steps are judged, and the waiting time of the others is unknown.
    """
    own = own_work(timings, num_warmup_steps, waits_within=waits_within)
    plain = plain_steps(timings, num_warmup_steps)
    steps_ms = slowest(plain)
    steps_ms = steps_ms[~np.isnan(steps_ms)]
    step_ms = float(np.median(steps_ms)) if len(steps_ms) else None
    ranks = [*map(int, np.unique(columns_of(timings)["rank"]))]
    num_ranks = len(ranks)
    # a rank without a judged step cannot be compared
    num_steps = len(own) if own.shape[1] == num_ranks else 0
    needed = steps_needed(num_steps, FALSE_ALARMS / max(num_ranks, 1))
    undecided = None
    if num_ranks < 2:
        undecided = "with one rank, no other rank waits"
    elif step_ms is None or not num_steps:
        undecided = "no step separates a rank's own work from communication"
    elif needed is None:
        least = math.ceil(math.log2(num_ranks / FALSE_ALARMS))
        undecided = f"{num_steps} steps are too few, at least {least} are needed"
    if undecided or step_ms is None or needed is None:
        return Stragglers([], None, step_ms, num_steps, undecided)
    lags = []
    for place, rank in enumerate(ranks):
        others = np.median(np.delete(own, place, axis=1), axis=1)
        lags.append(_lag(rank, own[:, place] - others, step_ms, needed))
    lags.sort(key=lambda lag: -lag.excess_ms)
    slow = [lag.rank for lag in lags if lag.called]
    wait_ms = None if waits_within else _others_wait_ms(plain, slow)
    return Stragglers(lags, wait_ms, step_ms, num_steps, None)


def own_work(
    timings: Table, num_warmup_steps: int, *, waits_within: bool = False
) -> Floats:
    """Return milliseconds of own work, shape (steps, ranks), without steps in which a
    value is missing.

    Own work is all but communication: batch, passes, optimizer, other. In plain steps,
    the backward pass ends when the last bucket is handed over. With ``waits_within``,
    ranks wait for each other before that and would all look slow: then, and if the
    handover was not timed, bracketed steps and their pass without communication serve.
    """
    rows, backward = plain_steps(timings, num_warmup_steps), TO_LAST
    if waits_within or TO_LAST not in rows:
        rows = summarized(timings, num_warmup_steps)
        rows = rows_where(rows, rows["kind"] == "bracketed")
        backward = "backward_compute_ms"
    parts = [numbers(rows, name) for name in (*OWN, backward)]
    found = by_step_and_rank(rows, np.sum(parts, axis=0))
    return found[~np.isnan(found).any(axis=1)]


def steps_needed(count: int, rate: float) -> int | None:
    """Return the smallest number of steps, out of ``count``, in which a rank must
    exceed the others in the sign test: by chance (fair coin tosses) so many have a
    probability of at most ``rate``. None if not even all ``count`` are enough.
    """
    done = np.arange(count)
    logs = np.concatenate([[0.0], np.cumsum(np.log((count - done) / (done + 1)))])
    # probability of at least so many heads
    tail = np.exp(logs - count * math.log(2))[::-1].cumsum()[::-1]
    enough = np.flatnonzero(tail <= rate)
    return int(enough[0]) if len(enough) else None


def _lag(rank: int, excess: Floats, step_ms: float, needed: int) -> Lag:
    values = np.sort(excess)
    middle = float(np.median(values))
    # the interval of the same test, which rejects a median outside it
    beyond = steps_needed(len(values), INTERVAL[0] / 100)
    assert beyond is not None, "the interval needs fewer steps than the test"
    decisive, floor = float(values[-needed]), FLOOR * step_ms
    return Lag(
        rank=rank,
        excess_ms=middle,
        low_ms=float(values[-beyond]),
        high_ms=float(values[beyond - 1]),
        visible_ms=middle - decisive + floor,
        called=decisive > floor,
    )


def _others_wait_ms(rows: Columns, slow: Sequence[int]) -> float | None:
    ranks = np.unique(rows["rank"])
    others = ~np.isin(ranks, slow)
    if not slow or not others.any():
        return None
    comm = np.nan_to_num(numbers(rows, OPTIMIZER_COMM))
    waits = by_step_and_rank(rows, numbers(rows, EXPOSED) + comm)
    mine, theirs = waits[:, ranks == slow[0]].sum(axis=1), waits[:, others]
    both = ~np.isnan(mine) & ~np.isnan(theirs).all(axis=1)
    longer = np.nanmedian(theirs[both], axis=1) - mine[both]
    return float(np.median(longer)) if len(longer) else None
