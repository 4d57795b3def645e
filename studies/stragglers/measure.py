"""Train with a random rank slowed, or none, again and again, and ask who is slow.

Each trial has processes of its own, and every second one is clean: what befalls the
machine befalls both kinds. The clock is that of the pipeline, and so is the verdict.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from stragglers_settings import Stragglers

from minitrain.analysis.stragglers import find_stragglers, own_work, step_times
from minitrain.bench.arms import only_ddp
from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.core.study import load_study
from minitrain.testing.slowed import Delay, Join, cpu_quota, timed_run, why_no_quota
from minitrain.train.clock import Row
from minitrain.train.config import RunConfig, config_of
from minitrain.train.run import Inject, Job, preflight

SCRIPT = Path(__file__).resolve()
STUDY, ROOT = SCRIPT.parent, SCRIPT.parents[2]


def main() -> None:
    study = load_study(STUDY, Stragglers)
    params = only_ddp(load_params(ROOT / "params.yaml").at(ROOT))
    params, size = params.with_train(**study.train()), study.world_size
    job = Job(params, "gloo", size, ROOT / f"data/shards/world-{size}", STUDY, SCRIPT)
    preflight(job)
    run, no_quota = config_of(params, job.shards, size), why_no_quota()
    shares = [] if no_quota else study.cpu_shares
    total = 2 * study.num_trials + len(shares)
    rows = progress(trials(study, run, shares), "trials", total=total)
    table = pd.DataFrame([*rows])
    clean = table[table["kind"] == "clean"]
    for law in ("slowest", "mean"):
        # what is not own work, such as communication, is known from clean trials
        rest = (clean["step_ms"] - clean[f"{law}_own_ms"]).median()
        table[f"{law}_law_ms"] = table[f"{law}_own_ms"] + rest
    with open_atomic(STUDY / "results.csv") as file:
        table.round(3).to_csv(file, index=False)
    write_json(STUDY / "machine.json", {"no_quota": no_quota, **provenance(SCRIPT)})


def trials(study: Stragglers, run: RunConfig, shares: Sequence[float]) -> Iterator[Row]:
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
        # its own work takes as much longer, where all of that is computing
        ms, kind = clean["slowest_own_ms"] * (1 / share - 1), f"{100 * share:.0f} %"
        yield {"kind": kind, "planted": rank, "planted_ms": ms, **found}


def judged(study: Stragglers, run: RunConfig, inject: Inject | None) -> Row:
    timings = pd.DataFrame(timed_run(run, study.world_size, inject))
    warmup = study.num_warmup_steps
    found, own = find_stragglers(timings, warmup), own_work(timings, warmup)
    if found.undecided:
        where = f"{STUDY / 'params.yaml'}: stragglers.num_steps = {study.num_steps}"
        raise UserError(f"{where}: must be more: {found.undecided}")
    own = own[own.index.isin(step_times(timings, warmup).index)]
    return {
        "found": " ".join(str(lag.rank) for lag in found.slow),
        **{key: vars(found.lags[0])[key] for key in ("excess_ms", "low_ms", "high_ms")},
        **{key: getattr(found, key) for key in ("others_wait_ms", "visible_ms")},
        "step_ms": found.step_ms,
        "slowest_own_ms": own.max(axis=1).median(),
        "mean_own_ms": own.mean(axis=1).median(),
    }


if __name__ == "__main__":
    run_stage(main)
