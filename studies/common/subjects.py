"""Models and batches for injected bugs: two tiny models, batches of unequal lengths."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from minitrain.core.params import OptimizerName, Params
from minitrain.data.batches import IGNORE_INDEX, causal_lm_loss
from minitrain.data.cut import InMemory, count_targets
from minitrain.model.gpt import CausalOutput
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.train.config import (
    RunConfig,
    config_of,
    whole_batches,
)

VOCAB_SIZE = 61
WIDTH = 16
BLOCK_SIZE = 12
GLOBAL_BATCH_SIZE = 12
NUM_STEPS = 6


class Bigrams(nn.Module):
    """Bigram model with the interface of causal language models."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.norm = norm
        self.head = nn.Linear(WIDTH, VOCAB_SIZE, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> CausalOutput:
        """Return ``loss``, the mean over labels that are not -100."""
        hidden = self.embedding(input_ids[:, :-1]).flatten(0, 1)
        logits = self.head(self.norm(torch.tanh(self.hidden(hidden))))
        targets = labels[:, 1:].flatten()
        loss = nn.functional.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX)
        return CausalOutput(loss, logits)


def plain() -> nn.Module:
    """Build a model without buffers."""
    return Bigrams(nn.LayerNorm(WIDTH))


def spare_parameter() -> nn.Module:
    """Build a model with a parameter that does not affect the loss."""
    model = Bigrams(nn.LayerNorm(WIDTH))
    model.register_parameter("spare", nn.Parameter(torch.zeros(WIDTH)))
    return model


def batch_norm() -> nn.Module:
    """Build a model with running statistics."""
    return Bigrams(nn.BatchNorm1d(WIDTH))


MODELS = {
    "plain": plain,
    "batch_norm": batch_norm,
    "spare_parameter": spare_parameter,
}


def make_batches(seed: int, count: int = NUM_STEPS) -> list[dict[str, Tensor]]:
    """Return global batches of random tokens, 3 to 12 per row, padded with -100."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        shape = (GLOBAL_BATCH_SIZE, BLOCK_SIZE)
        ids = torch.randint(VOCAB_SIZE, shape, generator=generator)
        lengths = torch.randint(3, BLOCK_SIZE + 1, shape[:1], generator=generator)
        padding = torch.arange(BLOCK_SIZE) >= lengths[:, None]
        labels = ids.masked_fill(padding, IGNORE_INDEX)
        batches.append({"input_ids": ids.masked_fill(padding, 0), "labels": labels})
    return batches


def make_run(
    model: str = "plain",
    optimizer: OptimizerName = "adamw",
    seed: int = 0,
    steps: int = NUM_STEPS,
) -> RunConfig:
    """Return a run of ``model`` with stock DDP."""
    return RunConfig(
        factory=MODELS[model],
        data=InMemory(make_batches(seed), causal_lm_loss, count_targets),
        sync=StockDDP,
        optimizer=optimizer,
        steps=steps,
        seed=seed,
    )


def in_memory(params: Params, shards: Path, num_steps: int) -> RunConfig:
    """Return the run of ``params`` with batches in memory; ``shards``: a world-1."""
    config = config_of(params, shards, 1)
    batches = whole_batches(config).batches([0], 1)
    whole = [batches.micro_batches(step)[0].inputs for step in range(num_steps)]
    data = InMemory(whole, causal_lm_loss, count_targets)
    return replace(config, data=data, steps=num_steps)
