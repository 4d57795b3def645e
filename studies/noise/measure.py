"""Measure arms that are the same, in turn: every difference between them is noise."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from minitrain.arms import Arm, Row, close, enter, only_ddp, take_turns
from minitrain.ddp import distributed, is_main_process
from minitrain.errors import UserError, run_stage
from minitrain.files import open_atomic, write_json
from minitrain.launcher import launch
from minitrain.params import Params, load_params
from minitrain.progress import progress
from minitrain.provenance import provenance

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
MIN_COPIES = 4


def main() -> None:
    study = YAML(typ="safe").load((STUDY / "params.yaml").read_text())["noise"]
    if study["copies"] < MIN_COPIES:
        allowed = f"at least {MIN_COPIES}, a pair to compare and another for its floor"
        raise UserError(f"params.yaml: noise.copies = {study['copies']}: {allowed}")
    params = only_ddp(load_params(ROOT / "params.yaml").at(ROOT))
    params = params.with_train(global_batch_size=study["global_batch_size"])
    run = partial(compete, params, study)
    rows = launch(run, study["world_size"], timeout_s=3600)[0]
    with open_atomic(STUDY / "rounds.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "machine.json", provenance())


def compete(params: Params, study: dict[str, Any]) -> list[Row]:
    count, size = study["num_rounds"], study["world_size"]
    arms = [
        Arm(f"{name} {copy}", size, 1, (("sync", name),))
        for copy in range(1, study["copies"] + 1)
        for name in study["strategies"]
    ]
    with distributed(timeout_s=600):
        rounds = progress(range(count), "rounds", total=count, show=is_main_process())
        contestants = enter(params, ROOT / "data/shards", arms)
        rows = take_turns(contestants, rounds, study["steps_per_round"])
        close(contestants)
    return rows


if __name__ == "__main__":
    run_stage(main)
