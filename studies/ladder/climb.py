"""Run the ladder with the default model on more world sizes, optimizers and dtypes than
the pipeline, with and without dropout, and every run twice.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from ladder_settings import Ladder
from study_settings import load_study
from subjects import in_memory
from torch import nn

from minitrain.check.data_parallel import examine
from minitrain.check.trial import run_alone, run_ranks
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.proof.bits import bits_rung
from minitrain.proof.words import as_dicts

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
DROPOUT = 0.1


def main() -> None:
    study = load_study(STUDY, Ladder)
    stated = load_params(ROOT / "params.yaml")
    params = stated.at(ROOT)
    plain = in_memory(params, ROOT / "data/shards/world-1", study.num_steps)
    single, double = plain.factory, lambda: plain.factory().double()
    cases = {
        "AdamW": plain,
        "SGD": replace(plain, optimizer="sgd"),
        "AdamW, float64": replace(plain, factory=double),
        "AdamW, dropout": replace(plain, factory=partial(dropped, single)),
    }
    rows = []
    for name, trial in cases.items():
        one = run_alone(trial)
        for world_size in progress(study.world_sizes, name):
            run, again = (run_ranks(trial, world_size) for _ in range(2))
            rungs = examine(trial, world_size, run=run, one=one).rungs
            rungs["again"] = bits_rung(run.states[0], again.states[0])
            where = {"case": name, "world_size": world_size}
            rows += [where | {"rung": r} | of for r, of in as_dicts(rungs).items()]
    origin = {
        "model": stated.model.model_dump(mode="json"),
        "train": stated.train.model_dump(mode="json"),
        "provenance": provenance(Path(__file__)),
    }
    # Written for the pipeline's report, but not an output of this stage, or else `dvc
    # repro` of the pipeline would run the study.
    for folder, name in ((STUDY, "origin"), (ROOT / "metrics", "ladder")):
        with open_atomic(folder / "ladder.csv") as file:
            pd.DataFrame(rows).to_csv(file, index=False)
        write_json(folder / f"{name}.json", origin)


def dropped(factory: Callable[[], nn.Module]) -> nn.Module:
    # Noise on the embeddings, from each rank's own random generator.
    model: Any = factory()
    model.token_embedding.register_forward_hook(
        lambda module, inputs, output: torch.dropout(output, DROPOUT, module.training)
    )
    return model


if __name__ == "__main__":
    run_stage(main)
