"""Duration of all-reduces by message size and backend, measured in one run.

Each rank runs :mod:`sweep_rank`, which interleaves backends trial by trial and checks
every result. This module computes statistics over trials.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sweep_rank import COPY, Backend, Trial, backends, be_a_rank

from minitrain.core.errors import EvidenceError, UserError
from minitrain.harness.launcher import launch

Row = dict[str, Any]


def powers_of_4(smallest: int, largest: int) -> list[int]:
    """Return ``smallest`` and its multiples by powers of 4 up to ``largest``; raises
    UserError unless sizes are whole numbers of float32.
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
    """Time float32 all-reduces in new processes, for ``sizes`` in bytes (multiples of
    4), each for about ``seconds_per_size``.

    Returns a row (:func:`statistics`) for each size and each of ``subjects`` (default:
    all available backends), and for the plain copy. Raises EvidenceError for a wrong
    result, with backend and size, and RankError if a rank failed.
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
    """Return the seconds from the first start to the last end over ranks."""
    return max(trial.end for trial in ranks) - min(trial.start for trial in ranks)


def slowest(ranks: Sequence[Trial]) -> float:
    """Return the duration on the slowest rank, without the skew of start times: a rank
    can leave the barrier late by ten times the duration of a small copy.
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
    """Return one row: quantiles of the trials' ``seconds``, and rates at their median.

    ``algbw_gb_per_s`` is payload over time in 10^9 bytes per second. ``busbw_gb_per_s``
    is defined as in nccl-tests (doc/PERFORMANCE.md), the load on each link of a ring:
    ``algbw`` times 2 (n - 1) / n; None for one rank and for the copy.
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
