"""Measure all strategies interleaved: same model and batches in the same processes.

Includes the ceiling (no communication), stock DDP twice (A/A), and options of some
strategies.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from bucket_views import BucketViews
from interleaved import load_interleaved
from strategies_settings import Strategies

from minitrain.bench.arms import WITHOUT_SYNC, Arm, measure
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import PLAIN, STRATEGIES, guarantees_of, name_of

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp again": {},
    "ddp, 0.2 MiB buckets": {"bucket_cap_mb": 0.2},
    "ddp, accumulation of 2": {"grad_accumulation_steps": 2},
    "ddp, accumulation of 4": {"grad_accumulation_steps": 4},
    "ddp, bucket views": {"sync": name_of(BucketViews)},
    "ddp, fused optimizer": {"fused_optimizer": True},
    "one_copy, fused optimizer": {"sync": "one_copy", "fused_optimizer": True},
    "no communication, fused optimizer": {"sync": PLAIN, "fused_optimizer": True},
    "invariant_shm, 4 shards": {"sync": "invariant_shm", "logical_shards": 4},
    # cost of 8 logical shards on 2 processes, without communication
    "no communication, 4 micro-batches": {"sync": PLAIN, "grad_accumulation_steps": 4},
}
MOST_MICRO_BATCHES = 4


def main() -> None:
    study, params = load_interleaved(STUDY, Strategies, MOST_MICRO_BATCHES)
    for arm in arms_of(study.world_size):
        own = arm.params(params).train
        guarantees_of(own.sync).require(own, study.world_size, own.precision)
    rows = []
    for size in study.global_batch_sizes:
        run = partial(rounds, params, study, size)
        rows += launch(run, study.world_size, timeout_s=3600)[0]
    with open_atomic(STUDY / "rounds.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "machine.json", provenance(Path(__file__)))


def rounds(params: Params, study: Strategies, size: int) -> list[dict[str, Any]]:
    baseline = params.baseline.model_copy(
        update={"steps_per_round": study.steps_per_round}
    )
    params = params.with_train(global_batch_size=size)
    params = params.model_copy(update={"baseline": baseline})
    with distributed(timeout_s=600):
        numbers = progress(
            range(study.num_rounds),
            f"global batch {size}",
            total=study.num_rounds,
            show=is_main_process(),
        )
        arms = list(arms_of(study.world_size))
        rows = measure(params, ROOT / "data/shards", numbers, arms)
    return [row | {"global_batch_size": size} for row in rows]


def arms_of(world_size: int) -> Iterator[Arm]:
    yield Arm("no communication", world_size, 1, WITHOUT_SYNC)
    for name in STRATEGIES:
        yield Arm(name, world_size, 1, (("sync", name),))
    for name, changes in VARIANTS.items():
        yield Arm(name, world_size, 1, tuple(changes.items()))


if __name__ == "__main__":
    run_stage(main)
