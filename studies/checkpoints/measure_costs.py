"""Measure training with and without checkpoints, interleaved, and time a resume."""

import tempfile
from functools import partial
from pathlib import Path

import pandas as pd
from checkpoints_settings import Checkpoints as Study
from competitors import KEEP, arms_of, checkpoints_of
from interleaved import load_interleaved
from reading import times_of_reading
from saving import Saving

from minitrain.bench.arms import Row, close, enter, take_turns
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
SHARDS = ROOT / "data/shards"
# operation, repetition, milliseconds
Times = list[tuple[str, int, float]]


def main() -> None:
    study, params = load_interleaved(STUDY, Study)
    params = params.with_train(global_batch_size=study.global_batch_size)
    # on the same disk as checkpoints; /tmp may be in memory
    (home := ROOT / ".minitrain").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="study-", dir=home) as folder:
        run = partial(compete, params, study, Path(folder))
        ranks = launch(run, study.world_size, timeout_s=3600)
        sizes = {arm.name: size_mb(arm) for arm in sorted(Path(folder).iterdir())}
    with open_atomic(STUDY / "rounds.csv") as file:
        pd.DataFrame(ranks[0][0]).to_csv(file, index=False)
    # all ranks wait for the slowest one
    times = [one for _, own in ranks for one in own]
    table = pd.DataFrame(times, columns=["what", "number", "ms"])
    slowest = table.groupby(["what", "number"], sort=False)["ms"].max()
    with open_atomic(STUDY / "times.csv") as file:
        slowest.reset_index().to_csv(file, index=False, float_format="%.2f")
    per_rank = {name: mb / KEEP / study.world_size for name, mb in sizes.items()}
    origin = {"mb_per_rank": per_rank, "provenance": provenance(Path(__file__))}
    write_json(STUDY / "disk.json", origin)


def size_mb(folder: Path) -> float:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6


def compete(params: Params, study: Study, folder: Path) -> tuple[list[Row], Times]:
    shards = SHARDS / f"world-{study.world_size}"
    with distributed(timeout_s=600):
        count, is_main = study.num_rounds, is_main_process()
        rounds = progress(range(count), "rounds", total=count, show=is_main)
        contestants = enter(params, SHARDS, arms_of(params, study, shards, folder))
        rows = take_turns(contestants, rounds, study.steps_per_round)
        saving = [one for one in contestants if isinstance(one, Saving)]
        times = [(s.arm.name, n, ms) for s in saving for n, ms in enumerate(s.took_ms)]
        newest = checkpoints_of(params, shards, folder, study.every_steps[0])
        times += times_of_reading(saving[0].worker, newest, study.num_loads)
        close(contestants)
    return rows, times


if __name__ == "__main__":
    run_stage(main)
