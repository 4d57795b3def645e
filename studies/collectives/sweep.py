"""How long an all-reduce takes, by message size and backend, measured in one run.

The ranks' side is :mod:`sweep_rank`: backends are interleaved trial
by trial, and every result is checked. Here trials become statistics.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sweep_rank import COPY, Backend, Trial, backends, be_a_rank

from minitrain.core.errors import EvidenceError, UserError
from minitrain.harness.launcher import launch

Row = dict[str, Any]


def powers_of_4(smallest: int, largest: int) -> list[int]:
    """``smallest``, and each four times the one before as far as ``largest``; UserError
    unless it is a number of float32.
    """
    if smallest < 4 or smallest % 4:
        raise UserError(f"smallest size = {smallest} bytes: must be a multiple of 4")
    sizes = [smallest]
    while 4 * sizes[-1] <= largest:
        sizes.append(4 * sizes[-1])
    return sizes


def sweep(
    world_size: int,
    sizes: Sequence[int],
    seconds_per_size: float,
    subjects: Mapping[str, Backend] | None = None,
) -> list[Row]:
    """Time all-reduces of float32 among new processes: ``sizes`` in bytes, multiples
    of 4, each for about ``seconds_per_size``.

    Returns a row (:func:`statistics`) for each size and each of ``subjects`` (all that
    can be measured here by default), and for the plain copy. Raises EvidenceError that
    names backend and size where a result is wrong, RankError where a rank fails.
    """
    subjects = subjects or backends(world_size)
    job = (subjects, sizes, seconds_per_size)
    ranks = launch(be_a_rank, world_size, *job, timeout_s=3600)
    rows = []
    for index, num_bytes in enumerate(sizes):
        for name in (*subjects, COPY):
            trials = [rank[index][name] for rank in ranks]
            _require_right(trials, f"{name}, {num_bytes} bytes, {world_size} processes")
            seconds = [
                slowest(each) if name == COPY else _from_first_to_last(each)
                for each in zip(*trials, strict=True)
                if each[0].timed
            ]
            rows.append(statistics(name, world_size, num_bytes, seconds))
    return rows


def _from_first_to_last(ranks: Sequence[Trial]) -> float:
    """Seconds in which a trial is under way on any rank: they share one clock."""
    return max(trial.end for trial in ranks) - min(trial.start for trial in ranks)


def slowest(ranks: Sequence[Trial]) -> float:
    """Seconds of the slowest rank. Copies need nobody else: what lies between their
    starts is how late a rank left the barrier, ten times as long as a small copy.
    """
    return max(trial.end - trial.start for trial in ranks)


def _require_right(trials: Sequence[Sequence[Trial]], what: str) -> None:
    for rank, of_rank in enumerate(trials):
        wrong = sum(not trial.is_right for trial in of_rank)
        if wrong:
            raise EvidenceError(
                f"{what}: rank {rank} got a wrong result in {wrong} of "
                f"{len(of_rank)} trials"
            )


def statistics(
    backend: str, world_size: int, num_bytes: int, seconds: Sequence[float]
) -> Row:
    """One row: quantiles of the trials' ``seconds``, and rates at their median.

    ``algbw_gb_per_s`` is payload over time, in 10^9 bytes a second. ``busbw_gb_per_s``
    is that of nccl-tests (doc/PERFORMANCE.md), what each link of a ring carries:
    ``algbw`` times 2 (n - 1) / n; None for one rank and for the copy, where nothing
    travels.
    """
    p5, p50, p95 = (float(x) for x in np.quantile(seconds, [0.05, 0.5, 0.95]))
    algbw = num_bytes / p50 / 1e9
    factor = 2 * (world_size - 1) / world_size if backend != COPY else 0
    return {
        "backend": backend,
        "world_size": world_size,
        "num_bytes": num_bytes,
        "num_trials": len(seconds),
        "p5_us": 1e6 * p5,
        "p50_us": 1e6 * p50,
        "p95_us": 1e6 * p95,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * factor or None,
    }
