"""Measure DDP over bucket sizes, with and without overlap, interleaved.

Includes the ceiling (no communication) and a duplicate of the default (A/A). Bucket
layouts are recorded in the processes that are timed.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from buckets_settings import Buckets
from interleaved import load_interleaved

from minitrain.bench.arms import WITHOUT_SYNC, Arm, Row, close, enter, take_turns
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
DEFAULT = "torch's default"
# Reducing after backward takes a Python hook. "watched" has the same hook with overlap,
# so that it differs from "no overlap" in one setting.
SERIES: dict[str, tuple[bool, bool]] = {
    "ddp": (True, False),
    "watched": (True, True),
    "no overlap": (False, True),
}


def main() -> None:
    study, params = load_interleaved(STUDY, Buckets)
    caps = {label(cap): cap for cap in study.bucket_caps_mb}
    params = params.with_train(global_batch_size=study.global_batch_size)
    run = partial(compete, params, study, caps)
    rows, num_bytes = launch(run, study.world_size, timeout_s=3600)[0]
    with open_atomic(STUDY / "rounds.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    origin = provenance(Path(__file__))
    write_json(STUDY / "buckets.json", {"num_bytes": num_bytes, **origin})


def label(cap: float | None) -> str:
    return DEFAULT if cap is None else f"{cap:g} MiB"


def compete(
    params: Params, study: Buckets, caps: dict[str, float | None]
) -> tuple[list[Row], dict[str, list[int]]]:
    count = study.num_rounds
    with distributed(timeout_s=600):
        arms = list(arms_of(study.world_size, caps))
        rounds = progress(range(count), "rounds", total=count, show=is_main_process())
        contestants: list[Any] = [*enter(params, ROOT / "data/shards", arms)]
        rows = take_turns(contestants, rounds, study.steps_per_round)
        by_name = {one.arm.name: one.worker.sync.trace.events for one in contestants}
        events = {cap: by_name[f"watched, {cap}"] for cap in caps}
        close(contestants)
    return rows, {cap: [e.num_bytes for e in found] for cap, found in events.items()}


def arms_of(world_size: int, caps: dict[str, float | None]) -> Iterator[Arm]:
    yield Arm("no communication", world_size, 1, WITHOUT_SYNC)
    for series, (overlap, timed) in SERIES.items():
        for cap, mb in caps.items():
            changes = (("sync", "ddp"), ("bucket_cap_mb", mb), ("overlap", overlap))
            yield Arm(f"{series}, {cap}", world_size, 1, changes, timed)
        if series == "watched":
            again = (("sync", "ddp"), ("bucket_cap_mb", None), ("overlap", True))
            yield Arm("ddp again", world_size, 1, again)


if __name__ == "__main__":
    run_stage(main)
