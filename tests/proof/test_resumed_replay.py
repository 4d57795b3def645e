"""A replay, and a run of one process, that are interrupted: the same bits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_config, tiny_params, tiny_shards, train_tiny, with_factory

from minitrain.check.trial import alone
from minitrain.core.params import Params
from minitrain.proof.evidence import Evidence
from minitrain.proof.replay import Replayed, replay
from minitrain.proof.single_process import run_one_process
from minitrain.train.checkpoint import Checkpoints
from minitrain.train.step_record import rows_of, sha256_tensor

STEPS = 8
CASES = {
    "dropout in fp16": ("other_models:dropout", {"precision": "fp16"}),
    "batch norm, SGD": ("other_models:batch_norm", {"optimizer": "sgd"}),
    "invariant": (
        "other_models:dropout",
        {"sync": "invariant", "logical_shards": 4, "global_batch_size": 16},
    ),
    "accumulation": ("other_models:dropout", {"grad_accumulation_steps": 2}),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_shards(tmp_path_factory.mktemp("shards"), 1, 2)


def params_of(case: str) -> Params:
    factory, changes = CASES[case]
    return with_factory(tiny_params(num_steps=STEPS, **changes), factory)


def kept_in(folder: Path) -> Checkpoints:
    return Checkpoints(folder, {"run": "replay-2"}, every=1, keep=STEPS)


def only(step: int, folder: Path) -> Checkpoints:
    """What a replay had that was interrupted after ``step`` steps."""
    left = folder.with_name(f"{folder.name}-{step}")
    shutil.copytree(folder / f"step-{step}", left / f"step-{step}")
    return kept_in(left)


def bits(again: Replayed) -> tuple[Any, ...]:
    state = {name: sha256_tensor(tensor) for name, tensor in again.state.items()}
    sampled = [[*one.sampled] for one in again.results]
    losses = [one.losses for one in again.results]
    return state, json.dumps(rows_of(again.results)), losses, sampled


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_replay_that_is_interrupted_ends_in_its_bits(
    shards: Path, tmp_path: Path, case: str
) -> None:
    params = params_of(case)
    run = train_tiny(params, shards, 2)
    config = tiny_config(params, shards, 2)
    with alone():
        wanted = bits(replay(config, run.rows, 2))
        all_kept = kept_in(tmp_path / "all")
        assert bits(replay(config, run.rows, 2, checkpoints=all_kept)) == wanted
        for step in range(1, STEPS):
            again = only(step, all_kept.folder)
            assert bits(replay(config, run.rows, 2, checkpoints=again)) == wanted


def test_one_process_that_is_interrupted_ends_in_its_bits(
    shards: Path, tmp_path: Path
) -> None:
    config = tiny_config(params_of("dropout in fp16"), shards, 1)

    def bits_of(one: Evidence) -> tuple[Any, ...]:
        tensors = [*one.states[0].items(), *one.results[0].sampled.items()]
        return {n: sha256_tensor(t) for n, t in tensors}, one.losses, one.rows

    with alone():
        wanted = bits_of(run_one_process(config))
        all_kept = kept_in(tmp_path / "all")
        run_one_process(config, checkpoints=all_kept)
        for step in (1, 2, 3, 5, 7):
            again = only(step, all_kept.folder)
            assert bits_of(run_one_process(config, checkpoints=again)) == wanted
