"""Inject every bug of the zoo, and none for clean runs; record each check's result."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from bugs import BUGS
from study_settings import load_study
from subjects import MODELS, NUM_STEPS, make_run
from zoo_settings import Zoo

from minitrain.check.data_parallel import Ladder, examine
from minitrain.check.trial import run_ranks
from minitrain.core.errors import run_stage
from minitrain.core.files import write_json
from minitrain.core.params import OptimizerName
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.sync.guarantees import Defaults
from minitrain.train.run import Inject

STUDY = Path(__file__).resolve().parent
WORLD_SIZE = 2
OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "sgd")


def main() -> None:
    study = load_study(STUDY, Zoo)
    steps = study.num_loss_steps
    # Models with other seeds show the variation of loss curves without a bug.
    seeds = range(study.num_seeds)
    clean_losses: dict[str, list[list[float]]] = {model: [] for model in MODELS}
    pairs = list(itertools.product(MODELS, seeds))
    for model, seed in progress(pairs, "clean losses", total=len(pairs)):
        clean_losses[model].append(losses(model, steps, seed=seed))

    bugs = {}
    for bug in progress(BUGS, "bugs", total=len(BUGS)):
        trial = make_run(bug.model, steps=bug.steps(NUM_STEPS))
        ladder = examine(trial, WORLD_SIZE, bug.inject)
        bugs[bug.name] = {
            "met_in": bug.met_in,
            "model": bug.model,
            "check": bug.check,
            "expected_cause": bug.cause,
            **described(ladder),
            "losses": losses(bug.model, bug.steps(steps), bug.inject),
        }

    clean = []
    runs = [*itertools.product(seeds, study.world_sizes, OPTIMIZERS)]
    for seed, world_size, optimizer in progress(runs, "clean runs", total=len(runs)):
        ladder = examine(make_run("plain", optimizer, seed), world_size)
        run = {"seed": seed, "world_size": world_size, "optimizer": optimizer}
        clean.append({**run, "breaches": ladder.breaches})
    result = {"bugs": bugs, "clean": clean, "clean_losses": clean_losses}
    write_json(STUDY / "zoo.json", {**result, **provenance(Path(__file__))})


def described(ladder: Ladder) -> dict[str, Any]:
    verdicts = {name: rung.verdict for name, rung in ladder.rungs.items()}
    first = ladder.divergence
    return {"verdicts": verdicts, "first": first and first.facts()}


def losses(
    model: str, steps: int, inject: Inject | None = None, seed: int = 0
) -> list[float]:
    # The same data for all seeds; only the initial weights differ.
    tuning = Defaults(find_unused_parameters=inject is None)
    trial = replace(make_run(model, steps=steps), seed=seed, tuning=tuning)
    run = run_ranks(trial, WORLD_SIZE, inject)
    return [*run.losses]


if __name__ == "__main__":
    run_stage(main)
