"""Measure identical arms, interleaved; their difference is noise."""

from functools import partial
from pathlib import Path

import pandas as pd
from interleaved import load_interleaved
from noise_settings import Noise

from minitrain.bench.arms import Arm, Row, close, enter, take_turns
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import guarantees_of

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]


def main() -> None:
    study, params = load_interleaved(STUDY, Noise)
    params = params.with_train(global_batch_size=study.global_batch_size)
    for name in study.strategies:
        try:
            guarantees = guarantees_of(name)
            guarantees.require(params.train, study.world_size, params.train.precision)
        except UserError as error:
            where = f"{STUDY / 'params.yaml'}: noise.strategies"
            raise UserError(f"{where}: {error}") from None
    run = partial(compete, params, study)
    rows = launch(run, study.world_size, timeout_s=3600)[0]
    with open_atomic(STUDY / "rounds.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "machine.json", provenance(Path(__file__)))


def compete(params: Params, study: Noise) -> list[Row]:
    count, size = study.num_rounds, study.world_size
    arms = [
        Arm(f"{name} {copy}", size, 1, (("sync", name),))
        for copy in range(1, study.copies + 1)
        for name in study.strategies
    ]
    with distributed(timeout_s=600):
        rounds = progress(range(count), "rounds", total=count, show=is_main_process())
        contestants = enter(params, ROOT / "data/shards", arms)
        rows = take_turns(contestants, rounds, study.steps_per_round)
        close(contestants)
    return rows


if __name__ == "__main__":
    run_stage(main)
