"""No false alarms: correct runs of many kinds, each with the right verdict.

``MINITRAIN_CLEAN_RUNS=200 pytest tests/proof/test_clean_runs.py`` tries 200 runs, the
suite a few fixed ones. docs/developers/mutants.md has the result of the last large
number.
"""

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from subjects import Bigrams, make_run
from torch import nn

from minitrain.check.data_parallel import examine
from minitrain.sync.catalog import find_strategy
from minitrain.train.config import RunConfig

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("MINITRAIN_CLEAN_RUNS", "8"))
MODELS = {
    "plain": lambda: Bigrams(nn.LayerNorm(16)),
    "with_dropout": lambda: Bigrams(nn.Dropout(0.2)),
    "with_batch_norm": lambda: Bigrams(nn.BatchNorm1d(16)),
    "with_both": lambda: Bigrams(nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.2))),
    "in_bfloat16": lambda: Bigrams(nn.LayerNorm(16)).bfloat16(),
}


def kinds() -> Iterator[Any]:
    """Cycle through models, precisions and world sizes; draw the other settings."""
    draw = random.Random(0)
    product = [*itertools.product((1, 2, 3, 4), MODELS, ("float32", "bf16"))]
    draw.shuffle(product)
    for seed, (world_size, model, precision) in zip(
        range(COUNT), itertools.cycle(product), strict=False
    ):
        rate = 10 ** draw.uniform(-4, -2)
        optimizer: Any = draw.choice(["adamw", "sgd"])
        sync = draw.choice(["ddp", "ddp", "flat", "shm"])
        run = replace(
            make_run(optimizer=optimizer, seed=seed),
            learning_rate=rate,
            factory=MODELS[model],
            precision=precision,
            sync=find_strategy(sync),
        )
        name = f"{seed}-{model}-{precision}-{optimizer}-{sync}-{world_size}"
        yield pytest.param(run, world_size, id=name)


@pytest.mark.parametrize(("run", "world_size"), [*kinds()])
def test_clean_run_is_proven(run: RunConfig, world_size: int) -> None:
    torch.manual_seed(0)
    ladder = examine(run, world_size, timeout_s=60)
    assert ladder.verdict == "proven", str(ladder)
    assert ladder.divergence is None
