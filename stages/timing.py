"""Summarizing the step times of all runs.

python -m stages.timing
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.analysis.account import account, ddp_says, means, summarize
from minitrain.analysis.busy import why_busy
from minitrain.analysis.stragglers import find_stragglers
from minitrain.core.errors import run_stage
from minitrain.core.files import (
    open_atomic,
    read_json,
    read_jsonl,
    reading,
    write_json,
)
from minitrain.core.params import load_params
from minitrain.core.provenance import require_one_machine
from minitrain.sync.catalog import guarantees_of


def main() -> None:
    params = load_params(Path("params.yaml"))
    folders = {run: Path("data/runs") / run for run in params.runs()}
    needed = ("machine", "num_steps", "num_hosts", "sync", "world_size")
    origins = {
        run: read_json(path / "provenance.json", *needed)
        for run, path in folders.items()
    }
    # Per backend, since CPU and GPU runs have different device names.
    for backend in ("gloo", "nccl"):
        mine = {run: origins[run] for run in origins if run.startswith(backend)}
        require_one_machine(mine)

    warmup = params.train.num_warmup_steps
    for origin in origins.values():
        params.train.check_warmup(origin["num_steps"])
    summary, accounts = {}, []
    for run, folder in folders.items():
        timings = read_timings(folder / "timings.jsonl", origins[run])
        num_hosts = origins[run]["num_hosts"]
        table = account(timings, warmup, one_clock=num_hosts == 1)
        within = guarantees_of(origins[run]["sync"]).waits_within
        stragglers = find_stragglers(timings, warmup, waits_within=within)
        busy = why_busy(origins[run].get("load"))
        summary[run] = {
            "machine_busy": busy,
            **summarize(timings, warmup, num_hosts=num_hosts),
            "num_hosts": num_hosts,
            "peak_memory_mb": max(origins[run]["peak_memory_mb"]),
            "account": means(table),
            "stragglers": stragglers.numbers(),
            "ddp_says": ddp_says(timings, warmup),
        }
        columns = ["run", "rank", "part", "mean_ms", "low_ms", "high_ms"]
        parts = pd.DataFrame(table, columns=columns).assign(run=run)
        if busy:
            parts[["mean_ms", "low_ms", "high_ms"]] = None
        accounts.append(parts)

    write_json(Path("metrics/timing.json"), summary)
    with open_atomic(Path("metrics/account.csv")) as file:
        pd.concat(accounts).to_csv(file, index=False)


def read_timings(path: Path, origin: Mapping[str, Any]) -> pd.DataFrame:
    """Read one row per step and rank; raises UserError if one is missing, as in a file
    truncated between two lines.
    """
    with reading(path):
        rows = read_jsonl(path, "step", "rank")
        steps, ranks = range(origin["num_steps"]), range(origin["world_size"])
        if sorted((r["rank"], r["step"]) for r in rows) != [*product(ranks, steps)]:
            raise ValueError(
                f"not one row for each of {len(steps)} steps and each rank"
            )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    run_stage(main)
