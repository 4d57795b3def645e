"""The step account: a breakdown of the step time into components that add up to it.

The timestamps of :mod:`minitrain.train.clock` leave no gaps. Statistics use *plain*
steps only: not *bracketed* ones, in which a backward pass between barriers and one
without communication are timed, nor *hashed* ones, recorded for the proof.
docs/reference/times.md defines each component. The recorder uses this module without
pandas, so timings are NumPy arrays of equal length by name (:data:`Columns`).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

# The components of a step and their display names, in the order of a step. Backward is
# not split if the last gradient was not observed (a GPU, fsdp), or without calibration.
PARTS = {
    "data_ms": "data",
    "forward_ms": "forward",
    "backward_ms": "whole backward",
    "backward_compute_ms": "backward",
    "interference_ms": "interference",
    "wait_ms": "wait",
    "comm_exposed_ms": "exposed communication",
    "other_ms": "other",
    "optimizer_ms": "optimizer",
    "optimizer_comm_ms": "communication of the optimizer",
}
# backward pass with reduction: total, until the last bucket is handed over, and after
BACKWARD, TO_LAST, EXPOSED = "backward_ms", "to_last_bucket_ms", "comm_exposed_ms"
OPTIMIZER_COMM = "optimizer_comm_ms"
ALL_RANKS = "all"
# times in DDP's own log (minitrain/sync/ddp_buckets.py), and the closest of our columns
DDP_SAYS = {
    "forward_ms": "forward_ms",
    "backward_ms": "backward_ms",
    "backward_compute_ms": "to_last_bucket_ms",
    "comm_ms": "comm_span_ms",
}
# largest difference, as a share of a step, at which two measurements agree
AGREE_WITHIN = 0.05
BOOTSTRAP_DRAWS = 2000
# longer runs are cut into so many blocks of steps, whose means are drawn: it bounds the
# memory of a bootstrap, and keeps the drift within a block
MOST_BLOCKS = 5000
INTERVAL = (5, 95)

Number = float | None
Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]
# timings, one row per step and rank
Table: TypeAlias = "Columns | pd.DataFrame"


def columns_of(table: Table) -> Columns:
    """Return the columns of ``table`` as arrays."""
    return {str(name): np.asarray(values) for name, values in table.items()}


def rows_where(rows: Columns, kept: npt.NDArray[np.bool_]) -> Columns:
    """Return the rows for which the mask ``kept`` is true."""
    return {name: values[kept] for name, values in rows.items()}


def numbers(rows: Columns, name: str) -> Floats:
    """Return column ``name`` as float64; all NaN if there is no such column."""
    return np.asarray(rows.get(name, np.full(len(rows["step"]), np.nan)), np.float64)


def known(rows: Columns, name: str) -> Floats:
    """Return the values of column ``name`` that are not NaN; maybe empty."""
    values = numbers(rows, name)
    return values[~np.isnan(values)]


def by_step_and_rank(rows: Columns, values: Floats) -> Floats:
    """Arrange ``values``, one per row, as (steps, ranks); NaN for a missing row."""
    steps, step = np.unique(rows["step"], return_inverse=True)
    ranks, rank = np.unique(rows["rank"], return_inverse=True)
    found = np.full((len(steps), len(ranks)), np.nan)
    found[step, rank] = values
    return found


def slowest(rows: Columns, name: str = "step_ms") -> Floats:
    """Return each step's largest value of column ``name`` over ranks; NaN if none."""
    found = by_step_and_rank(rows, numbers(rows, name))
    return np.fmax.reduce(found, axis=1, initial=np.nan)


def longest_s(rows: Columns) -> float:
    """Return the largest total step time of any rank in seconds; 0 without rows."""
    found = by_step_and_rank(rows, numbers(rows, "step_ms"))
    return float(np.nansum(found, axis=0).max(initial=0.0)) / 1e3


def summarized(timings: Table, num_warmup_steps: int) -> Columns:
    """Return the rows after the warm-up, without hashed steps and without steps that
    directly follow the writing or reading of a checkpoint.

    ``timings`` has one row per step and rank: ``step``, ``rank``, ``kind`` (plain or
    bracketed), ``recorded`` (hashed), ``after_interruption`` (follows a checkpoint),
    ``tokens`` (real targets) and times in milliseconds.
    """
    rows = columns_of(timings)
    # columns of an empty table have no types
    hashed, paused = (
        rows[name].astype(bool) for name in ("recorded", "after_interruption")
    )
    kept = (rows["step"] >= num_warmup_steps) & ~hashed & ~paused
    return rows_where(rows, kept)


def plain_steps(timings: Table, num_warmup_steps: int) -> Columns:
    """Return the rows used for statistics: of :func:`summarized`, without bracketed
    steps, and without the steps after bracketed or hashed ones, since ranks begin those
    at a barrier or at different times.
    """
    every = columns_of(timings)
    special = (every["kind"] == "bracketed") | every["recorded"].astype(bool)
    steps = every["step"][special]
    rows = summarized(timings, num_warmup_steps)
    return rows_where(rows, ~np.isin(rows["step"], [*steps, *(steps + 1)]))


def summarize(
    timings: Table, num_warmup_steps: int, *, num_hosts: int = 1
) -> dict[str, Any]:
    """Return a run's statistics, in milliseconds and tokens per second.

    Undefined values are None. All but ``backward_bracketed`` come from plain steps. A
    step takes as long as its slowest rank; all steps together take as long as the rank
    with the largest total. ``allreduce`` is the time per step during which at least one
    bucket is in flight, from handover to reduced (``comm_total``), including waiting
    for other ranks; over all ranks and steps. ``overlap`` is the share of that time
    before a rank's last handover. ``skew``, the spread of the ranks at the last bucket,
    is None on several hosts, which have no common clock.
    """
    plain = plain_steps(timings, num_warmup_steps)
    steps_ms = slowest(plain)
    steps_ms = steps_ms[~np.isnan(steps_ms)]
    # per rank: the slowest rank changes from step to step, so the sum of the slowest
    # times would exceed the total of every rank
    seconds, tokens = longest_s(plain), plain["tokens"].sum()
    communication = known(plain, "comm_total_ms")
    hidden, sent = known(plain, "comm_hidden_ms").sum(), communication.sum()
    # hashing happens after the backward pass, so hashed steps are valid here
    rows = columns_of(timings)
    bracketed = (rows["step"] >= num_warmup_steps) & (rows["kind"] == "bracketed")
    backward = known(rows_where(rows, bracketed), BACKWARD)
    return {
        "num_steps_summarized": len(steps_ms),
        "tokens_per_s": float(tokens / seconds) if seconds > 0 else None,
        "step_mean_ms": _mean(steps_ms),
        "step_p50_ms": _quantile(steps_ms, 0.50),
        "step_p95_ms": _quantile(steps_ms, 0.95),
        "allreduce_p50_ms": _quantile(communication, 0.50),
        "allreduce_p95_ms": _quantile(communication, 0.95),
        "overlap": float(hidden / sent) if sent > 0 else None,
        "skew_p50_ms": _skew(plain) if num_hosts == 1 else None,
        "backward_bracketed_p50_ms": _quantile(backward, 0.50),
    }


def account(
    timings: Table, num_warmup_steps: int, *, one_clock: bool = True
) -> list[dict[str, Any]]:
    """Return the step account, a row per rank and component; empty without plain steps.

    Columns are ``rank`` (``"all"`` for the mean over all ranks, then ``"rank 0"`` and
    so on), ``part`` (component), ``mean_ms``, and the 5-95 % bootstrap interval of the
    mean, ``low_ms`` to ``high_ms``. The ``mean_ms`` of a rank add up to its mean step.
    Set ``one_clock`` to False if ranks are on several hosts; ``comm_exposed_ms`` then
    includes ``wait_ms``.
    """
    rows = plain_steps(timings, num_warmup_steps)
    rows = _with_waits(rows) if one_clock else rows
    alone = summarized(timings, num_warmup_steps)
    every = {ALL_RANKS: rows} | {
        f"rank {rank}": rows_where(rows, rows["rank"] == rank)
        for rank in np.unique(rows["rank"])
    }
    return [
        {"rank": rank, **part}
        for rank, own in every.items()
        for part in _parts(own, rows_where(alone, np.isin(alone["rank"], own["rank"])))
    ]


def means(
    table: Iterable[Mapping[str, Any]], rank: str = ALL_RANKS
) -> dict[str, Number]:
    """Return, by name, the mean milliseconds of each component of ``rank`` in
    ``table``, an :func:`account`; also their sum ``step_ms`` (None without rows).
    """
    parts = {row["part"]: row["mean_ms"] for row in table if row["rank"] == rank}
    return {**parts, "step_ms": sum(parts.values()) if parts else None}


def ddp_says(timings: Table, num_warmup_steps: int) -> dict[str, Any]:
    """Return mean times by name: in DDP's own log (``ddp``) and by minitrain's clock
    (``ours``), in ms over the same plain steps, and by how many percent DDP's is larger
    (``difference_pct``). Values are None if a time is missing.
    """
    plain = plain_steps(timings, num_warmup_steps)
    says = {}
    for name, column in DDP_SAYS.items():
        both = np.stack([numbers(plain, f"ddp_{name}"), numbers(plain, column)])
        ddp, ours = map(_mean, both[:, ~np.isnan(both).any(axis=0)])
        more = 100 * (ddp / ours - 1) if ddp is not None and ours else None
        says[name] = {"ddp": ddp, "ours": ours, "difference_pct": more}
    return says


def _with_waits(rows: Columns) -> Columns:
    if EXPOSED not in rows or len(np.unique(rows["rank"])) < 2:
        return rows
    last = slowest(rows, "last_bucket_at_ns")[
        np.unique(rows["step"], return_inverse=True)[1]
    ]
    exposed = numbers(rows, EXPOSED)
    late = (last - numbers(rows, "last_bucket_at_ns")) / 1e6
    wait = np.minimum(late, exposed)
    return {**rows, "wait_ms": wait, EXPOSED: exposed - wait}


def _parts(rows: Columns, alone: Columns) -> Iterator[dict[str, Any]]:
    # ``alone`` also holds the bracketed steps, with passes without communication
    to_last, compute = (rows, TO_LAST), (alone, "backward_compute_ms")
    found = {name: (rows, name) for name in PARTS if len(known(rows, name))}
    if 0 < len(known(*to_last)) == len(rows["step"]):
        found[BACKWARD] = to_last
        if len(known(*compute)):
            found |= {"backward_compute_ms": compute, "interference_ms": to_last}
            del found[BACKWARD]
    else:
        # these need the time of the last gradient in every step
        found = {n: of for n, of in found.items() if n not in ("wait_ms", EXPOSED)}
    # calibrated passes are drawn independently of the other columns
    draws = {n: _draws(*of, n == "backward_compute_ms") for n, of in found.items()}
    if "interference_ms" in draws:
        # a difference of means: no step times both
        draws["interference_ms"] -= draws["backward_compute_ms"]
    for name in [name for name in PARTS if name in draws]:
        low, high = map(float, np.percentile(draws[name][1:], INTERVAL))
        mean = float(draws[name][0])
        yield {"part": name, "mean_ms": mean, "low_ms": low, "high_ms": high}


@lru_cache(2)
def _picks(count: int, seed: int) -> npt.NDArray[np.int64]:
    # rows of each bootstrap sample
    return np.random.default_rng(seed).integers(0, count, (BOOTSTRAP_DRAWS, count))


def _draws(rows: Columns, name: str, seed: int) -> Floats:
    # the mean, then means of bootstrap samples of steps; ranks wait for each other
    table = by_step_and_rank(rows, numbers(rows, name))
    values = np.nanmean(table[~np.isnan(table).all(axis=1)], axis=1)
    size = -(-len(values) // MOST_BLOCKS)
    whole = values[: len(values) // size * size]
    blocks = whole.reshape(-1, size).mean(axis=1)
    means = blocks[_picks(len(blocks), seed)].mean(axis=1)
    return np.concatenate([[known(rows, name).mean()], means])


def _mean(values: Floats) -> Number:
    return float(values.mean()) if len(values) else None


def _quantile(values: Floats, q: float) -> Number:
    return float(np.quantile(values, q)) if len(values) else None


def _skew(plain: Columns) -> Number:
    at = by_step_and_rank(plain, numbers(plain, "last_bucket_at_ns"))
    if at.shape[1] < 2:
        return None
    apart = (np.fmax.reduce(at, axis=1) - np.fmin.reduce(at, axis=1)) / 1e6
    return _quantile(apart[~np.isnan(apart)], 0.50)
