"""Description of a run: model, batches, strategy, optimizer, precision, seed.

A description comes from params.yaml, from an arm of a speed comparison (one of its
timed configurations), or from a user's test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minitrain.comm.torch_private import import_compiler
from minitrain.core.params import OptimizerName, Params, PrecisionName, Train
from minitrain.data.batches import ShardFiles
from minitrain.data.cut import Batches, Data
from minitrain.data.order import steps_per_epoch
from minitrain.data.shards import open_targets
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.factory import build_model
from minitrain.sync.catalog import find_strategy
from minitrain.sync.guarantees import DEFAULTS, Tuning
from minitrain.sync.strategy import Strategy
from minitrain.train.rng import seed_everything
from minitrain.train.step_record import recorded_steps

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True)
class RunConfig:
    """Everything that the results of a run depend on, except the number of processes.
    ``sync`` is the strategy, and ``tuning`` holds its settings. Rank r seeds with
    ``seed`` + r before it calls ``factory``, which builds the model, and cuts its share
    of a global batch into ``grad_accumulation_steps`` micro-batches.
    """

    factory: Callable[[], nn.Module]
    data: Data
    steps: int
    sync: type[Strategy] = Strategy
    tuning: Tuning = DEFAULTS
    optimizer: OptimizerName = "adamw"
    fused_optimizer: bool = False
    learning_rate: float = 1e-3
    precision: PrecisionName = "float32"
    grad_accumulation_steps: int = 1
    seed: int = 0
    hash_every: int = 1

    def start_model(self, rank: int) -> nn.Module:
        """Return the model of a rank (or shard), seeded with ``seed`` + ``rank``."""
        seed_everything(self.seed + rank)
        return self.factory()

    def num_shards(self, world_size: int) -> int:
        """Return the number of shards into which a global batch is split."""
        return self.sync.guarantees.num_shards(world_size, self.tuning)

    def batches(
        self, shards: Sequence[int], num_shards: int, device: torch.device | None = None
    ) -> Batches:
        """Return batches of ``shards``, of ``num_shards``, on ``device`` (None:
        CPU)."""
        return self.data.open(shards, num_shards, self.grad_accumulation_steps, device)

    @property
    def kind_of_optimizer(self) -> Callable[..., torch.optim.Optimizer]:
        """The optimizer's class, in torch's default or fused implementation."""
        # the base class does not have the keyword arguments of its subclasses
        kind: Any = OPTIMIZERS[self.optimizer]
        return partial(kind, fused=True) if self.fused_optimizer else kind

    @property
    def recorded(self) -> set[int]:
        """Numbers of the steps whose tensors are hashed (recorded steps)."""
        return recorded_steps(self.steps, self.hash_every, self.data.smaller())

    @property
    def sampled(self) -> set[int]:
        """Recorded steps whose tensors are stored for the witness (an independent
        check): first two, last, first with a smaller batch, one chosen by data's hash.
        """
        steps, smaller = sorted(self.recorded), self.data.smaller()
        drawn = steps[self.data.digest() % len(steps)]
        return {*steps[:2], *steps[-1:], drawn, *(s for s in steps if s == smaller)}


def plain_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a replay, in which one process has the whole model."""
    # without a strategy, whose mistakes a replay must not repeat
    import_compiler()
    return config.kind_of_optimizer(model.parameters(), lr=config.learning_rate)


def config_of(
    params: Params, shards: Path, num_files: int, *, steps: int | None = None
) -> RunConfig:
    """Return the run that ``params`` describe, with the ``num_files`` data files in the
    folder ``shards``; ``steps`` overrides its number of steps. Raises UserError for an
    unknown strategy, or if no step is left to time after the warm-up.
    """
    train = params.train
    block_size, batch_size = params.model.block_size, train.global_batch_size
    return RunConfig(
        factory=partial(build_model, params.model, VOCAB_SIZE),
        data=ShardFiles(shards, num_files, block_size, batch_size, train.seed),
        steps=steps or _num_steps(train, shards),
        sync=find_strategy(train.sync),
        tuning=train,
        optimizer=train.optimizer,
        fused_optimizer=train.fused_optimizer,
        learning_rate=train.learning_rate,
        precision=train.precision,
        grad_accumulation_steps=train.grad_accumulation_steps,
        seed=train.seed,
        hash_every=train.hash_every,
    )


def _num_steps(train: Train, shards: Path) -> int:
    if train.num_steps is not None:
        return train.num_steps
    assert train.num_epochs is not None
    num_samples = len(open_targets(shards))
    steps = train.num_epochs * steps_per_epoch(num_samples, train.global_batch_size)
    train.check_warmup(steps)
    return steps


def whole_batches(config: RunConfig) -> RunConfig:
    """Return ``config`` for one process: whole global batches, no synchronization."""
    return replace(config, sync=Strategy, grad_accumulation_steps=1)
