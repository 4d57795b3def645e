"""Runs to be interrupted: one for each kind of state that persists between steps."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from subjects import (
    BLOCK_SIZE,
    VOCAB_SIZE,
    WIDTH,
    Bigrams,
    batch_norm,
)
from torch import Tensor, nn

from minitrain.data.batches import ShardFiles
from minitrain.data.shards import Samples, write_shards
from minitrain.model.gpt import CausalOutput, MiniGPT
from minitrain.sync.catalog import find_strategy
from minitrain.sync.guarantees import Defaults
from minitrain.train.config import RunConfig

# ranks: 2 or 3, logical shards: 4
BATCH = 12
# samples in the last batch of an epoch; one of four shards may have none
TAIL = 7
SEED = 35000
# a first token that occurs in one sample only
LOUD = 0


def gpt() -> nn.Module:
    """Build a model with two layers, so that FSDP has several groups."""
    return MiniGPT(VOCAB_SIZE, BLOCK_SIZE, n_layer=2, n_head=2, n_embd=WIDTH)


def dropout() -> nn.Module:
    """Build a model that draws random numbers in every step."""
    return Bigrams(nn.Dropout(0.25))


class Loud(nn.Module):
    """Model whose scaled gradients overflow in float16 once per epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = gpt()

    def forward(self, input_ids: Tensor, labels: Tensor) -> CausalOutput:
        """Compute the model's output, with a scaled loss."""
        found: CausalOutput = self.gpt(input_ids, labels)
        is_loud = (input_ids[:, 0] == LOUD).any()
        return CausalOutput(found.loss * torch.where(is_loud, 1e4, 1.0), found.logits)


@dataclass(frozen=True)
class Case:
    """Run with ``world_size`` ranks and ``changes`` to the common options."""

    world_size: int
    changes: dict[str, Any]
    factory: Callable[[], nn.Module] = gpt

    def config(self, shards: Path, steps: int) -> RunConfig:
        """Return the run on the samples of :func:`write_samples` in ``shards``."""
        changes = {"sync": "ddp", "learning_rate": 1e-2, **self.changes}
        return RunConfig(
            factory=self.factory,
            data=ShardFiles(shards, 1, BLOCK_SIZE, BATCH, SEED),
            steps=steps,
            seed=SEED,
            hash_every=5,
            **{**changes, "sync": find_strategy(changes["sync"])},
        )


FOUR_SHARDS = Defaults(logical_shards=4)
INVARIANT = {"sync": "invariant", "tuning": FOUR_SHARDS}
CASES = {
    "ddp, 2 ranks": Case(2, {}),
    "ddp, 3 ranks": Case(3, {}),
    "ddp, 3 ranks, many buckets": Case(3, {"tuning": Defaults(bucket_cap_mb=0.004)}),
    "invariant": Case(2, INVARIANT),
    "shm": Case(3, {"sync": "shm"}),
    "zero1": Case(3, {"sync": "zero1"}),
    "one_copy": Case(3, {"sync": "one_copy"}),
    "fsdp": Case(2, {"sync": "fsdp"}),
    "powersgd": Case(2, {"sync": "powersgd"}),
    "accumulation": Case(3, {"grad_accumulation_steps": 2}),
    "fp16": Case(3, {"precision": "fp16"}, Loud),
    "dropout": Case(3, {}, dropout),
    "dropout, invariant": Case(2, INVARIANT, dropout),
    "batch norm": Case(3, {}, batch_norm),
    "sgd": Case(3, {"optimizer": "sgd", "learning_rate": 0.1}),
}


def write_samples(folder: Path, steps_per_epoch: int) -> Path:
    """Write random samples of 3 to BLOCK_SIZE tokens for epochs of that many steps, the
    last step with fewer samples, into the new ``folder``, and return it.
    """
    random = np.random.default_rng(SEED)
    count = BATCH * (steps_per_epoch - 1) + TAIL
    lengths = random.integers(3, BLOCK_SIZE + 1, count)
    tokens = random.integers(LOUD + 1, VOCAB_SIZE, lengths.sum(), np.uint8)
    tokens[0] = LOUD
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    write_shards(folder, Samples(tokens, offsets), 1)
    return folder
