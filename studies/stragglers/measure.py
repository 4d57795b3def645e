"""Train many times with a random slow rank, or none, and record the verdict.

Each trial has new processes, and every second one is clean, so that disturbances affect
both kinds. Clock and verdict are the pipeline's.
"""

from pathlib import Path

import pandas as pd
from interleaved import only_ddp
from slowed import why_no_quota
from straggler_trials import trials
from stragglers_settings import Stragglers
from study_settings import load_study

from minitrain.core.cpu_load import Usage, load_of
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.train.config import config_of
from minitrain.train.run import Job, preflight

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
    before = Usage.now(with_children=True)
    table = pd.DataFrame([*rows])
    # ranks are children of this process that have exited
    load = load_of([Usage.now(with_children=True).since(before)])
    clean = table[table["kind"] == "clean"]
    for law in ("slowest", "mean"):
        # time other than a rank's own work, such as communication, from clean trials
        rest = (clean["step_ms"] - clean[f"{law}_own_ms"]).median()
        table[f"{law}_law_ms"] = table[f"{law}_own_ms"] + rest
    with open_atomic(STUDY / "results.csv") as file:
        table.round(3).to_csv(file, index=False)
    about = {"no_quota": no_quota, "load": load, **provenance(SCRIPT)}
    write_json(STUDY / "machine.json", about)


if __name__ == "__main__":
    run_stage(main)
