"""Whether one rank of a run is slower than the others, by how much, and what they lose.

Ranks meet in every step, so a step takes as long as its slowest rank; but whoever comes
late does not look slow there: it is the others who wait. What tells is each rank's own
work, which is what it does before it has to wait for anybody. Definitions are in
docs/reference.md; all numbers come from the rows of :mod:`minitrain.train.clock`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from minitrain.analysis.account import INTERVAL, OPTIMIZER_COMM, summarized

# share of a step: identical arms of a comparison differ by as much (studies/noise)
FLOOR = 0.05
# share of the runs in which a rank may be called that is slower by no more than that
FALSE_ALARMS = 0.01
WAITING = ("wait_ms", "comm_exposed_ms", OPTIMIZER_COMM)


@dataclass(frozen=True)
class Lag:
    """By how much ``rank`` is slower than the others, in ms a step: the median over the
    steps of its own work less the median of theirs, which lies from ``low_ms`` to
    ``high_ms`` with 90 % confidence. ``visible_ms`` is the least excess that would have
    been called in these steps; ``called``: it was.
    """

    rank: int
    excess_ms: float
    low_ms: float
    high_ms: float
    visible_ms: float
    called: bool


@dataclass(frozen=True)
class Stragglers:
    """What the steps of a run say of its ranks.

    ``lags`` has all of them, the slowest first; none where it is ``undecided``, a
    clause that says why. ``others_wait_ms``: how much longer the ranks that keep up
    wait in a step than the slowest does, None where none is slow or it was not timed.
    ``step_ms`` is the median of a plain step, None without one.
    """

    lags: Sequence[Lag]
    others_wait_ms: float | None
    step_ms: float | None
    num_steps: int
    undecided: str | None

    @property
    def slow(self) -> list[Lag]:
        """The ranks that are called slow, the slowest first."""
        return [lag for lag in self.lags if lag.called]

    @property
    def visible_ms(self) -> float | None:
        """By how much any rank would have had to be slower to be called."""
        return max((lag.visible_ms for lag in self.lags), default=None)

    def numbers(self) -> dict[str, Any]:
        """What stands in metrics/timing.json."""
        keys = ("rank", "excess_ms", "low_ms", "high_ms")
        return {
            "slow": [{key: asdict(lag)[key] for key in keys} for lag in self.slow],
            "others_wait_ms": self.others_wait_ms,
            "visible_ms": self.visible_ms,
            "step_ms": self.step_ms,
            "num_steps": self.num_steps,
            "undecided": self.undecided,
        }


def find_stragglers(
    timings: pd.DataFrame, num_warmup_steps: int, *, waits_within: bool = False
) -> Stragglers:
    """Judge every rank by the summarized steps of ``timings``, whose columns are those
    of :func:`minitrain.analysis.account.summarized`.

    A rank is called slow where it exceeds the others by more than ``FLOOR`` of a step
    in too many steps for chance: a sign test (Dixon and Mood 1946), which asks nothing
    of the shape of the noise, but takes the steps to be independent. A rank that
    exceeds them by no more than the floor is called in at most ``FALSE_ALARMS`` of the
    runs, all ranks together. It says nothing where steps are too few to call anybody.
    ``waits_within`` is the strategy's (:class:`minitrain.sync.guarantees.Guarantees`):
    then bracketed steps alone are judged, and how long others wait is not known.
    """
    own = own_work(timings, num_warmup_steps, waits_within=waits_within)
    plain = step_times(timings, num_warmup_steps)
    step_ms = float(plain.median()) if len(plain) else None
    num_ranks, num_steps = timings["rank"].nunique(), len(own)
    needed = steps_needed(num_steps, FALSE_ALARMS / num_ranks)
    undecided = None
    if num_ranks < 2:
        undecided = "one rank has nobody who waits for it"
    elif step_ms is None:
        undecided = "no step without instruments was timed"
    elif not num_steps:
        undecided = "no step tells a rank's own work from communication"
    elif needed is None:
        least = math.ceil(math.log2(num_ranks / FALSE_ALARMS))
        undecided = f"{num_steps} steps are too few, {least} would do"
    if undecided or step_ms is None or needed is None:
        return Stragglers([], None, step_ms, num_steps, undecided)
    lags = []
    ranks: list[Any] = own.columns.tolist()
    for rank in ranks:
        excess = own[rank] - own.drop(columns=rank).median(axis=1)
        lags.append(_lag(rank, excess, step_ms, needed))
    lags.sort(key=lambda lag: -lag.excess_ms)
    slow = [lag.rank for lag in lags if lag.called]
    wait_ms = None
    if not waits_within:
        wait_ms = _others_wait_ms(summarized(timings, num_warmup_steps), slow)
    return Stragglers(lags, wait_ms, step_ms, num_steps, None)


def own_work(
    timings: pd.DataFrame, num_warmup_steps: int, *, waits_within: bool = False
) -> pd.DataFrame:
    """Milliseconds of own work: a row for each summarized ``step``, a column for each
    ``rank``; steps in which that of a rank is not known are left out.

    Batch, forward and backward pass, optimizer. Backward is that without communication
    where it was calibrated (bracketed steps), else that until the last bucket is handed
    over, which is a rank's own work unless it ``waits_within``: a fast rank would seem
    as slow as the slowest.
    """
    rows = summarized(timings, num_warmup_steps)
    names = ["backward_compute_ms", "to_last_bucket_ms"]
    alone, to_last = (rows.reindex(columns=[name])[name] for name in names)
    own = rows[["data_ms", "forward_ms", "optimizer_ms"]].sum(axis=1, skipna=False)
    backward = alone if waits_within else alone.fillna(to_last)
    rows = rows.assign(own_ms=own + backward)
    return rows.pivot(index="step", columns="rank", values="own_ms").dropna()


def step_times(timings: pd.DataFrame, num_warmup_steps: int) -> "pd.Series[float]":
    """Milliseconds of plain steps, by ``step``: each as long as on its slowest rank.

    Those after a bracketed step are left out: its calibration lets the ranks go at
    unlike times, which is a wait that training does not have.
    """
    after = timings.loc[timings["kind"] == "bracketed", "step"] + 1
    plain = summarized(timings, num_warmup_steps).query("kind == 'plain'")
    return plain[~plain["step"].isin(after)].groupby("step")["step_ms"].max()


def steps_needed(count: int, rate: float) -> int | None:
    """Of ``count`` steps the least number that a coin would reach with a probability of
    at most ``rate``; None where even all of them are likelier.
    """
    done = np.arange(count)
    logs = np.concatenate([[0.0], np.cumsum(np.log((count - done) / (done + 1)))])
    # the probability of so many or more
    tail = np.exp(logs - count * math.log(2))[::-1].cumsum()[::-1]
    enough = np.flatnonzero(tail <= rate)
    return int(enough[0]) if len(enough) else None


def _lag(rank: int, excess: "pd.Series[float]", step_ms: float, needed: int) -> Lag:
    values = np.sort(excess.to_numpy(np.float64))
    middle = float(np.median(values))
    # the interval of the same test: it would reject a median beyond
    beyond = steps_needed(len(values), INTERVAL[0] / 100)
    assert beyond is not None, "fewer steps suffice than to call a rank"
    decisive, floor = float(values[-needed]), FLOOR * step_ms
    return Lag(
        rank=rank,
        excess_ms=middle,
        low_ms=float(values[-beyond]),
        high_ms=float(values[beyond - 1]),
        visible_ms=middle - decisive + floor,
        called=decisive > floor,
    )


def _others_wait_ms(rows: pd.DataFrame, slow: Sequence[int]) -> float | None:
    """In instrumented steps: there the barrier takes what the optimizer and the batch
    are late by, and the end of backward the rest.
    """
    timed = rows.query("kind == 'instrumented'").reindex(
        columns=["step", "rank", *WAITING]
    )
    timed[OPTIMIZER_COMM] = timed[OPTIMIZER_COMM].fillna(0.0)
    waits = timed.assign(ms=timed[[*WAITING]].sum(axis=1, skipna=False)).pivot(
        index="step", columns="rank", values="ms"
    )
    ranks: list[Any] = waits.columns.tolist()
    others = [rank for rank in ranks if rank not in slow]
    if not slow or not others:
        return None
    longer = (waits[others].median(axis=1) - waits[slow[0]]).dropna()
    return float(longer.median()) if len(longer) else None
