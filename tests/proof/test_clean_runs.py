"""No false alarm: honest runs of many kinds, each called what it is.

``MINITRAIN_CLEAN_RUNS=200 pytest tests/proof/test_clean_runs.py`` makes as many; the
suite makes a few, always the same. docs/mutants.md says what the last large count
found.
"""

import itertools
import os
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from subjects import Bigrams, make_run
from torch import nn

from minitrain.check.check import examine
from minitrain.sync.catalog import find_strategy
from minitrain.train.config import RunConfig

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("MINITRAIN_CLEAN_RUNS", "8"))


def with_dropout() -> nn.Module:
    return Bigrams(nn.Dropout(0.2))


def with_batch_norm() -> nn.Module:
    return Bigrams(nn.BatchNorm1d(16))


def with_both() -> nn.Module:
    return Bigrams(nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.2)))


def plain() -> nn.Module:
    return Bigrams(nn.LayerNorm(16))


def in_bfloat16() -> nn.Module:
    return plain().bfloat16()


@dataclass(frozen=True)
class Kind:
    """One honest run."""

    seed: int
    rate: float
    world_size: int
    model: Any
    precision: str
    optimizer: str
    sync: str

    def trial(self) -> RunConfig:
        return replace(
            make_run(optimizer=self.optimizer, seed=self.seed),
            learning_rate=self.rate,
            factory=self.model,
            precision=self.precision,
            sync=find_strategy(self.sync),
        )


def kinds() -> list[Kind]:
    """Every combination of model, precision and world size before one comes again; the
    rest is drawn.
    """
    draw = random.Random(0)
    models = [plain, with_dropout, with_batch_norm, with_both, in_bfloat16]
    product = [*itertools.product((1, 2, 3, 4), models, ("float32", "bf16"))]
    draw.shuffle(product)
    found = []
    for seed, (world_size, model, precision) in zip(
        range(COUNT), itertools.cycle(product), strict=False
    ):
        rate = 10 ** draw.uniform(-4, -2)
        optimizer = draw.choice(["adamw", "sgd"])
        sync = draw.choice(["ddp", "ddp", "flat", "shm"])
        found.append(Kind(seed, rate, world_size, model, precision, optimizer, sync))
    return found


def name_of(kind: Kind) -> str:
    return (
        f"{kind.seed}-{kind.model.__name__}-{kind.precision}-{kind.optimizer}-"
        f"{kind.sync}-{kind.world_size}"
    )


@pytest.mark.parametrize("kind", kinds(), ids=name_of)
def test_clean_run_is_proven(kind: Kind) -> None:
    torch.manual_seed(0)
    ladder = examine(kind.trial(), kind.world_size, timeout_s=60)
    assert ladder.verdict == "proven", str(ladder)
