"""Trials of the study: the rank named by the verdict with a slow rank, and without."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from slowed import Delay, Join, cpu_quota, timed_run
from stragglers_settings import Stragglers

from minitrain.analysis.stragglers import find_stragglers, own_work
from minitrain.core.errors import UserError
from minitrain.train.clock import Row
from minitrain.train.config import RunConfig
from minitrain.train.run import Inject

STUDY = Path(__file__).resolve().parent


def trials(study: Stragglers, run: RunConfig, shares: Sequence[float]) -> Iterator[Row]:
    """Return a row per trial: every second one clean, then each of ``shares``."""
    random, count = np.random.default_rng(study.seed), study.num_trials
    ranks = random.integers(study.world_size, size=count + len(shares)).tolist()
    delays = random.uniform(study.smallest_delay, study.largest_delay, count)
    for number, rank in enumerate(ranks[:count]):
        clean = judged(study, run, None)
        yield {"kind": "clean", "planted": "", "planted_ms": 0.0, **clean}
        ms, is_busy = delays[number] * clean["step_ms"], number % 2 == 1
        found = judged(study, run, Delay(rank, ms, is_busy))
        kind = "busy" if is_busy else "sleep"
        yield {"kind": kind, "planted": rank, "planted_ms": ms, **found}
    for share, rank in zip(shares, ranks[count:], strict=True):
        with cpu_quota(share) as procs:
            found = judged(study, run, Join(rank, procs))
        # relative to the rank's own work, if all of it is computation
        ms, kind = clean["slowest_own_ms"] * (1 / share - 1), f"{100 * share:.0f} %"
        yield {"kind": kind, "planted": rank, "planted_ms": ms, **found}


def judged(study: Stragglers, run: RunConfig, inject: Inject | None) -> Row:
    timings = pd.DataFrame(timed_run(run, study.world_size, inject))
    warmup = study.num_warmup_steps
    found, own = find_stragglers(timings, warmup), own_work(timings, warmup)
    if found.undecided:
        where = f"{STUDY / 'params.yaml'}: stragglers.num_steps = {study.num_steps}"
        raise UserError(f"{where}: must be more: {found.undecided}")
    return {
        "found": " ".join(str(lag.rank) for lag in found.slow),
        **{key: vars(found.lags[0])[key] for key in ("excess_ms", "low_ms", "high_ms")},
        **{key: getattr(found, key) for key in ("others_wait_ms", "visible_ms")},
        "step_ms": found.step_ms,
        "slowest_own_ms": float(np.median(own.max(axis=1))),
        "mean_own_ms": float(np.median(own.mean(axis=1))),
    }
