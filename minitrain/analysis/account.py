"""Where the time of a step goes: parts that add up, and whether they really do.

Definitions are in docs/reference.md. All numbers come from the rows of
:mod:`minitrain.train.clock`; warm-up steps and steps that were hashed are left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

PARTS = (
    "data_ms",
    "wait_ms",
    "forward_ms",
    "backward_compute_ms",
    "interference_ms",
    "comm_exposed_ms",
    "optimizer_ms",
)
# a part of its own only where the optimizer's step communicates (ZeRO)
OPTIMIZER_COMM = "optimizer_comm_ms"
# what DDP logs (minitrain/sync/stock.py), and what of ours is nearest to it
DDP_SAYS = {
    "forward_ms": "forward_ms",
    "backward_ms": "backward_ms",
    "backward_compute_ms": "to_last_bucket_ms",
    "comm_ms": "comm_span_ms",
}
CLOSED_WITHIN = 0.05
BOOTSTRAP_DRAWS = 2000
INTERVAL = (5, 95)

Number = float | None


def summarized(timings: pd.DataFrame, num_warmup_steps: int) -> pd.DataFrame:
    """The rows that statistics are made of: after warm-up, not hashed, and not right
    after a checkpoint was written or the run went on from one.

    ``timings`` has a row for each step and rank: ``step``, ``rank``, ``kind``,
    ``recorded``, ``after_interruption``, ``tokens`` and times in milliseconds.
    """
    disturbed = timings["recorded"] | timings["after_interruption"]
    return timings[(timings["step"] >= num_warmup_steps) & ~disturbed.astype(bool)]


def summarize(
    timings: pd.DataFrame, num_warmup_steps: int, *, num_hosts: int = 1
) -> dict[str, Any]:
    """A run's numbers, in milliseconds and tokens per second; None where undefined.

    Step times, all-reduce times and throughput come from plain steps. A step takes as
    long as its slowest rank, and all steps together as long as the rank that took the
    longest for them. ``allreduce`` is the time per step in which at least one bucket
    was on its way, from handing over to reduced (``comm_total``), waiting for other
    ranks included; over all ranks and steps. ``skew`` is None where ranks were on
    several hosts: the clock of each counts from a moment of its own.
    """
    plain = summarized(timings, num_warmup_steps).query("kind == 'plain'")
    steps = plain.groupby("step").agg(ms=("step_ms", "max"), tokens=("tokens", "sum"))
    # rank by rank: who is slow in one step may be ahead in the next, so that the sum of
    # the slowest of each step is more than any rank took
    seconds = plain.groupby("rank")["step_ms"].sum().max() / 1e3
    communication = _column(plain, "comm_total_ms")
    return {
        "num_steps_summarized": len(steps),
        "tokens_per_s": float(steps["tokens"].sum() / seconds) if seconds > 0 else None,
        "step_mean_ms": _mean(steps["ms"]),
        "step_p50_ms": _quantile(steps["ms"], 0.50),
        "step_p95_ms": _quantile(steps["ms"], 0.95),
        "allreduce_p50_ms": _quantile(communication, 0.50),
        "allreduce_p95_ms": _quantile(communication, 0.95),
        "overlap": _ratio(_column(plain, "comm_hidden_ms"), communication),
        "skew_p50_ms": _skew(plain) if num_hosts == 1 else None,
        "backward_bracketed_p50_ms": _bracketed(timings, num_warmup_steps),
    }


def account(timings: pd.DataFrame, num_warmup_steps: int) -> dict[str, Any]:
    """The step account: mean of every part, their sum, and if that is the step.

    ``closed`` is True when the sum lies within 5 % of the mean step time of plain
    steps, which no barrier and no calibration disturbed; None where steps of some kind
    are missing.
    """
    rows = summarized(timings, num_warmup_steps)
    samples = _samples(rows)
    parts = {name: _mean(values) for name, values in samples.items()}
    plain = _mean(rows.query("kind == 'plain'")["step_ms"])
    known = [value for value in parts.values() if value is not None]
    if len(known) < len(parts) or plain is None:
        missing = {"sum_ms": None, "gap_pct": None, "closed": None}
        return {**parts, **missing, "plain_step_ms": plain}
    total = sum(known)
    gap = total / plain - 1
    return {
        **parts,
        "sum_ms": total,
        "plain_step_ms": plain,
        "gap_pct": 100 * gap,
        "closed": abs(gap) <= CLOSED_WITHIN,
    }


def ddp_says(timings: pd.DataFrame, num_warmup_steps: int) -> dict[str, Any]:
    """DDP's own log beside our clock: means over the same plain steps, all ranks, and
    how much larger DDP's is, in percent; None where either is missing.
    """
    plain = summarized(timings, num_warmup_steps).query("kind == 'plain'")
    says = {}
    for name, column in DDP_SAYS.items():
        both = [_column(plain, f"ddp_{name}"), _column(plain, column)]
        known = both[0].index.intersection(both[1].index)
        ddp, ours = (_mean(values[known]) for values in both)
        more = 100 * (ddp / ours - 1) if ddp is not None and ours else None
        says[name] = {"ddp": ddp, "ours": ours, "difference_pct": more}
    return says


def account_intervals(timings: pd.DataFrame, num_warmup_steps: int) -> pd.DataFrame:
    """``part``, ``mean_ms``, and the 5-95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    rows = []
    for name, values in _samples(summarized(timings, num_warmup_steps)).items():
        low = high = None
        if len(values):
            draws = rng.choice(values, (BOOTSTRAP_DRAWS, len(values))).mean(axis=1)
            low, high = (float(x) for x in np.percentile(draws, INTERVAL))
        mean = _mean(values)
        rows.append({"part": name, "mean_ms": mean, "low_ms": low, "high_ms": high})
    return pd.DataFrame(rows)


def _samples(rows: pd.DataFrame) -> Mapping[str, "pd.Series[float]"]:
    instrumented = rows.query("kind == 'instrumented'")
    compute = _column(rows, "backward_compute_ms")
    to_last = _column(instrumented, "to_last_bucket_ms")
    optional = [OPTIMIZER_COMM] if len(_column(rows, OPTIMIZER_COMM)) else []
    samples = {
        name: _column(instrumented, name)
        for name in (*PARTS, *optional)
        if name not in ("backward_compute_ms", "interference_ms")
    }
    samples["backward_compute_ms"] = compute
    # a difference of means: the two are never measured in one step
    samples["interference_ms"] = to_last - compute.mean()
    return {name: samples[name].dropna() for name in (*PARTS, *optional)}


def _bracketed(timings: pd.DataFrame, num_warmup_steps: int) -> Number:
    # hashing happens after the backward pass, so hashed steps count here
    rows = timings[timings["step"] >= num_warmup_steps].query("kind == 'bracketed'")
    return _quantile(rows["backward_ms"], 0.50)


def _column(rows: pd.DataFrame, name: str) -> "pd.Series[float]":
    if name not in rows:
        return pd.Series(dtype=float)
    return rows[name].dropna().astype(float)


def _mean(values: "pd.Series[float]") -> Number:
    return float(values.mean()) if len(values) else None


def _quantile(values: "pd.Series[float]", q: float) -> Number:
    return float(values.quantile(q)) if len(values) else None


def _ratio(part: "pd.Series[float]", whole: "pd.Series[float]") -> Number:
    return float(part.sum() / whole.sum()) if whole.sum() > 0 else None


def _skew(plain: pd.DataFrame) -> Number:
    if "last_bucket_at_ns" not in plain or plain["rank"].nunique() < 2:
        return None
    at = plain.groupby("step")["last_bucket_at_ns"]
    return _quantile((at.max() - at.min()) / 1e6, 0.50)
