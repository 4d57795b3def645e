"""The step account: where the time of a step goes, in parts that add up to it.

Every step is stamped without gaps (:mod:`minitrain.train.clock`), so that the parts of
the plain steps add up to the step. Definitions are in docs/reference.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from minitrain.analysis.columns import (
    Columns,
    Floats,
    Table,
    by_step_and_rank,
    columns_of,
    known,
    longest_s,
    numbers,
    rows_where,
    slowest,
)

# The parts of a step, in its order. Backward is one part where the last gradient was
# not seen (a GPU, fsdp) or no step was calibrated.
PARTS = (
    "data_ms",
    "forward_ms",
    "backward_ms",
    "backward_compute_ms",
    "interference_ms",
    "wait_ms",
    "comm_exposed_ms",
    "other_ms",
    "optimizer_ms",
    "optimizer_comm_ms",
)
# the whole of the backward pass and the reduction, and its two halves
BACKWARD, TO_LAST, EXPOSED = "backward_ms", "to_last_bucket_ms", "comm_exposed_ms"
OPTIMIZER_COMM = "optimizer_comm_ms"
ALL_RANKS = "all"
# what DDP logs (minitrain/sync/stock.py), and what of ours is nearest to it
DDP_SAYS = {
    "forward_ms": "forward_ms",
    "backward_ms": "backward_ms",
    "backward_compute_ms": "to_last_bucket_ms",
    "comm_ms": "comm_span_ms",
}
# share of a step by which two measurements of one time may differ and still agree
AGREE_WITHIN = 0.05
BOOTSTRAP_DRAWS = 2000
MOST_PICKS = 20_000_000
INTERVAL = (5, 95)

Number = float | None


def summarized(timings: Table, num_warmup_steps: int) -> Columns:
    """Return the rows after the warm-up, without steps that were hashed and those right
    after a checkpoint was written or read.

    ``timings`` has a row for each step and rank: ``step``, ``rank``, ``kind``,
    ``recorded``, ``after_interruption``, ``tokens`` and times in milliseconds.
    """
    rows = columns_of(timings)
    disturbed = rows["recorded"] | rows["after_interruption"]
    kept = (rows["step"] >= num_warmup_steps) & ~disturbed.astype(bool)
    return rows_where(rows, kept)


def plain_steps(timings: Table, num_warmup_steps: int) -> Columns:
    """Return the summarized rows that statistics are made of: without bracketed steps,
    and without the step after each and after one that was hashed, which ranks begin
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
    """Return a run's numbers, in milliseconds and tokens per second; None where
    undefined. All but ``backward_bracketed`` come from plain steps. A step takes as
    long as its slowest rank, and all steps together as long as the rank that took the
    longest for them. ``allreduce`` is the time per step in which at least one bucket
    was on its way, from handing over to reduced (``comm_total``), waiting for other
    ranks included; over all ranks and steps. ``skew`` is None where ranks were on
    several hosts: the clock of each counts from a moment of its own.
    """
    plain = plain_steps(timings, num_warmup_steps)
    steps_ms = slowest(plain)
    # rank by rank: who is slow in one step may be ahead in the next, so that the sum of
    # the slowest of each step is more than any rank took
    seconds, tokens = longest_s(plain), plain["tokens"].sum()
    communication = known(plain, "comm_total_ms")
    return {
        "num_steps_summarized": len(steps_ms),
        "tokens_per_s": float(tokens / seconds) if seconds > 0 else None,
        "step_mean_ms": _mean(steps_ms),
        "step_p50_ms": _quantile(steps_ms, 0.50),
        "step_p95_ms": _quantile(steps_ms, 0.95),
        "allreduce_p50_ms": _quantile(communication, 0.50),
        "allreduce_p95_ms": _quantile(communication, 0.95),
        "overlap": _ratio(known(plain, "comm_hidden_ms"), communication),
        "skew_p50_ms": _skew(plain) if num_hosts == 1 else None,
        "backward_bracketed_p50_ms": _bracketed(timings, num_warmup_steps),
    }


def account(
    timings: Table, num_warmup_steps: int, *, one_clock: bool = True
) -> list[dict[str, Any]]:
    """Return the step account: rows of ``rank``, ``part``, ``mean_ms``, and the 5-95 %
    bootstrap interval of the mean, ``low_ms`` to ``high_ms``.

    ``rank`` is ``"all"`` for the means over all ranks, then ``"rank 0"`` and on. The
    ``mean_ms`` of a rank's parts add up to its mean step. Unless all ranks have
    ``one_clock``, as on one host, ``wait_ms`` is in ``comm_exposed_ms``. Empty without
    a plain step.
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
    """Return the mean of each part in the account ``table``, and their sum ``step_ms``,
    which is None where the account is empty.
    """
    parts = {row["part"]: row["mean_ms"] for row in table if row["rank"] == rank}
    return {**parts, "step_ms": sum(parts.values()) if parts else None}


def ddp_says(timings: Table, num_warmup_steps: int) -> dict[str, Any]:
    """DDP's own log beside our clock: means over the same plain steps, all ranks, and
    how much larger DDP's is, in percent; None where either is missing.
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
    # the rows of a rank, or of all; ``alone`` holds the passes without communication
    found = {name: known(rows, name) for name in PARTS if name != "interference_ms"}
    found = {name: of for name, of in found.items() if len(of)}
    to_last, compute = known(rows, TO_LAST), known(alone, "backward_compute_ms")
    if len(to_last) and len(to_last) == len(rows["step"]):
        found[BACKWARD] = to_last
        if len(compute):
            found |= {"backward_compute_ms": compute, "interference_ms": to_last}
            del found[BACKWARD]
    else:
        # of no use without the last gradient of every step
        found = {n: of for n, of in found.items() if n not in ("wait_ms", EXPOSED)}
    draws = {
        # the passes without communication are drawn for themselves
        name: _draws(values, _picks(len(values), name == "backward_compute_ms"))
        for name, values in found.items()
    }
    if "interference_ms" in draws:
        # a difference of means: the two are never timed in one step
        draws["interference_ms"] -= draws["backward_compute_ms"]
    for name in PARTS:
        if name in draws:
            low, high = map(float, np.percentile(draws[name][1:], INTERVAL))
            mean = float(draws[name][0])
            yield {"part": name, "mean_ms": mean, "low_ms": low, "high_ms": high}


@lru_cache(2)
def _picks(count: int, seed: int) -> npt.NDArray[np.int64]:
    # rows of each bootstrap sample; of very many rows fewer samples
    draws = min(BOOTSTRAP_DRAWS, max(200, MOST_PICKS // count))
    return np.random.default_rng(seed).integers(0, count, (draws, count))


def _draws(values: Floats, picks: npt.NDArray[np.int64]) -> Floats:
    # the mean, then means of bootstrap samples
    return np.concatenate([[values.mean()], values[picks].mean(axis=1)])


def _bracketed(timings: Table, num_warmup_steps: int) -> Number:
    # hashing happens after the backward pass, so hashed steps count here
    rows = columns_of(timings)
    bracketed = (rows["step"] >= num_warmup_steps) & (rows["kind"] == "bracketed")
    return _quantile(known(rows_where(rows, bracketed), BACKWARD), 0.50)


def _mean(values: Floats) -> Number:
    return float(values.mean()) if len(values) else None


def _quantile(values: Floats, q: float) -> Number:
    return float(np.quantile(values, q)) if len(values) else None


def _ratio(part: Floats, whole: Floats) -> Number:
    return float(part.sum() / whole.sum()) if whole.sum() > 0 else None


def _skew(plain: Columns) -> Number:
    at = by_step_and_rank(plain, numbers(plain, "last_bucket_at_ns"))
    if at.shape[1] < 2:
        return None
    apart = (np.fmax.reduce(at, axis=1) - np.fmin.reduce(at, axis=1)) / 1e6
    return _quantile(apart[~np.isnan(apart)], 0.50)
