"""The step account: components of the time of a step, which add up to the step.

The stamps of :mod:`minitrain.train.clock` leave no gaps, so the components of a plain
step add up exactly. docs/reference.md defines each of them.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

# The components of a step, in its order. Backward is not split if the last gradient
# was not observed (a GPU, fsdp) or no step was calibrated.
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
# backward pass and reduction: the total, and its two halves
BACKWARD, TO_LAST, EXPOSED = "backward_ms", "to_last_bucket_ms", "comm_exposed_ms"
OPTIMIZER_COMM = "optimizer_comm_ms"
ALL_RANKS = "all"
# the times that DDP logs (minitrain/sync/stock.py), and the closest of our columns
DDP_SAYS = {
    "forward_ms": "forward_ms",
    "backward_ms": "backward_ms",
    "backward_compute_ms": "to_last_bucket_ms",
    "comm_ms": "comm_span_ms",
}
# largest difference, as a share of a step, at which two measurements agree
AGREE_WITHIN = 0.05
BOOTSTRAP_DRAWS = 2000
MOST_PICKS = 20_000_000
INTERVAL = (5, 95)

Number = float | None


def summarized(timings: pd.DataFrame, num_warmup_steps: int) -> pd.DataFrame:
    """Return the rows after the warm-up, without hashed steps and without steps that
    directly follow the writing or reading of a checkpoint.

    ``timings`` has one row per step and rank: ``step``, ``rank``, ``kind``,
    ``recorded``, ``after_interruption``, ``tokens`` and times in milliseconds.
    """
    disturbed = timings["recorded"] | timings["after_interruption"]
    return timings[(timings["step"] >= num_warmup_steps) & ~disturbed.astype(bool)]


def plain_steps(timings: pd.DataFrame, num_warmup_steps: int) -> pd.DataFrame:
    """Return the rows used for statistics: the summarized ones without bracketed steps
    and without each step that follows a bracketed or hashed one, since ranks begin it
    at a barrier or at different times.
    """
    special = (timings["kind"] == "bracketed") | timings["recorded"].astype(bool)
    steps = timings.loc[special, "step"]
    rows = summarized(timings, num_warmup_steps)
    return rows[~rows["step"].isin([*steps, *(steps + 1)])]


def summarize(
    timings: pd.DataFrame, num_warmup_steps: int, *, num_hosts: int = 1
) -> dict[str, Any]:
    """Return a run's statistics, in milliseconds and tokens per second.

    Undefined values are None. All but ``backward_bracketed`` come from plain steps. A
    step takes as long as its slowest rank; all steps together take as long as the rank
    with the largest total. ``allreduce`` is the time per step during which at least one
    bucket is in flight, from handover to reduced (``comm_total``), including waiting
    for other ranks; over all ranks and steps. ``skew`` is None on several hosts, which
    have no common clock.
    """
    plain = plain_steps(timings, num_warmup_steps)
    steps = plain.groupby("step").agg(ms=("step_ms", "max"), tokens=("tokens", "sum"))
    # per rank: the slowest rank changes from step to step, so the sum of the slowest
    # times would exceed the total of every rank
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


def account(
    timings: pd.DataFrame, num_warmup_steps: int, *, one_clock: bool = True
) -> pd.DataFrame:
    """Return the step account, a row per rank and component; empty without plain steps.

    Columns are ``rank`` (``"all"`` for the mean over all ranks, then ``"rank 0"`` and
    on), ``part``, ``mean_ms``, and the 5-95 % bootstrap interval of the mean,
    ``low_ms`` to ``high_ms``. The ``mean_ms`` of a rank add up to its mean step. Unless
    all ranks share ``one_clock``, as on one host, ``comm_exposed_ms`` includes
    ``wait_ms``.
    """
    rows = plain_steps(timings, num_warmup_steps)
    rows = _with_waits(rows) if one_clock else rows
    alone = summarized(timings, num_warmup_steps)
    every = {ALL_RANKS: rows} | {
        f"rank {rank}": own for rank, own in rows.groupby("rank")
    }
    found = [
        {"rank": rank, **part}
        for rank, own in every.items()
        for part in _parts(own, alone[alone["rank"].isin(own["rank"])])
    ]
    return pd.DataFrame(found, columns=["rank", "part", "mean_ms", "low_ms", "high_ms"])


def means(table: pd.DataFrame, rank: str = ALL_RANKS) -> dict[str, Number]:
    """Return the mean of each component in the account ``table``, and their sum
    ``step_ms``, which is None if the account is empty.
    """
    own = table[table["rank"] == rank]
    parts = dict(zip(own["part"], own["mean_ms"], strict=True))
    return {**parts, "step_ms": sum(parts.values()) if parts else None}


def ddp_says(timings: pd.DataFrame, num_warmup_steps: int) -> dict[str, Any]:
    """Compare DDP's own log with our clock: means over the same plain steps and all
    ranks, and by how many percent DDP's is larger; None if either is missing.
    """
    plain = plain_steps(timings, num_warmup_steps)
    says = {}
    for name, column in DDP_SAYS.items():
        both = [_column(plain, f"ddp_{name}"), _column(plain, column)]
        known = both[0].index.intersection(both[1].index)
        ddp, ours = (_mean(values[known]) for values in both)
        more = 100 * (ddp / ours - 1) if ddp is not None and ours else None
        says[name] = {"ddp": ddp, "ours": ours, "difference_pct": more}
    return says


def _with_waits(rows: pd.DataFrame) -> pd.DataFrame:
    if EXPOSED not in rows or rows["rank"].nunique() < 2:
        return rows
    at = rows["last_bucket_at_ns"]
    late = (at.groupby(rows["step"]).transform("max") - at) / 1e6
    wait = np.minimum(late, rows[EXPOSED])
    return rows.assign(wait_ms=wait, **{EXPOSED: rows[EXPOSED] - wait})


def _parts(rows: pd.DataFrame, alone: pd.DataFrame) -> Iterator[dict[str, Any]]:
    # ``rows`` are of one rank or of all; ``alone`` has the passes without communication
    known = {name: _column(rows, name) for name in PARTS if name != "interference_ms"}
    known = {name: of for name, of in known.items() if len(of)}
    to_last, compute = _column(rows, TO_LAST), _column(alone, "backward_compute_ms")
    if len(rows) and len(to_last) == len(rows):
        known[BACKWARD] = to_last
        if len(compute):
            known |= {"backward_compute_ms": compute, "interference_ms": to_last}
            del known[BACKWARD]
    else:
        # undefined without the last gradient of every step
        known = {n: of for n, of in known.items() if n not in ("wait_ms", EXPOSED)}
    draws = {
        # calibrated passes are drawn independently of the other columns
        name: _draws(values, _picks(len(values), name == "backward_compute_ms"))
        for name, values in known.items()
    }
    if "interference_ms" in draws:
        # a difference of means: no step times both
        draws["interference_ms"] -= draws["backward_compute_ms"]
    for name in PARTS:
        if name in draws:
            low, high = np.percentile(draws[name][1:], INTERVAL)
            mean = draws[name][0]
            yield {"part": name, "mean_ms": mean, "low_ms": low, "high_ms": high}


@lru_cache(2)
def _picks(count: int, seed: int) -> npt.NDArray[np.int64]:
    # rows of each bootstrap sample; fewer samples if there are very many rows
    draws = min(BOOTSTRAP_DRAWS, max(200, MOST_PICKS // count))
    return np.random.default_rng(seed).integers(0, count, (draws, count))


def _draws(
    values: "pd.Series[float]", picks: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    # the mean, followed by the means of the bootstrap samples
    found = values.to_numpy(np.float64)
    return np.concatenate([[found.mean()], found[picks].mean(axis=1)])


def _bracketed(timings: pd.DataFrame, num_warmup_steps: int) -> Number:
    # hashing happens after the backward pass, so hashed steps are valid here
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
