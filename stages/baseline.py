"""Benchmarking all configurations, interleaved.

    python -m stages.baseline

All arms run in one set of processes, as many as the largest world size. Some arms are
duplicated (A/A); the difference between duplicates is the noise floor.
"""

from functools import partial
from pathlib import Path

import pandas as pd
import torch.distributed as dist

from minitrain.bench.arms import arms_of, measure
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.cpu_load import Usage, load_of
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params, load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance, require_torch
from minitrain.harness.launcher import run_as_ranks


def main() -> None:
    params = load_params(Path("params.yaml"))
    run_as_ranks(
        "stages.baseline",
        partial(be_a_rank, params),
        max(arm.processes for arm in arms_of(params)),
        preflight=partial(require_torch, params.environment.torch),
        threads_per_process=params.train.threads_per_process,
    )


def be_a_rank(params: Params, launcher: str) -> None:
    # idle ranks wait for the whole turn of a smaller arm, so allow the limit per step
    limit = params.launch.timeout_s * (2 + params.baseline.steps_per_round)
    # a socket takes no more: 23 days
    limit = min(limit, 2_000_000)
    with distributed("gloo", timeout_s=limit):
        num_rounds = params.baseline.num_rounds
        rounds = progress(
            range(num_rounds), "baseline", total=num_rounds, show=is_main_process()
        )
        before = Usage.now()
        rows = measure(params, Path("data/shards"), rounds, arms_of(params))
        # per-rank usage, to separate the load of other processes
        mine = Usage.now().since(before)
        used = [mine] * dist.get_world_size()
        dist.all_gather_object(used, mine)
        if not is_main_process():
            return
    out = Path("data/baseline")
    with open_atomic(out / "rounds.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    origin = {"launcher": launcher, **provenance(Path(__file__)), "load": load_of(used)}
    write_json(out / "provenance.json", origin)


if __name__ == "__main__":
    run_stage(main)
