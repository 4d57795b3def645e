"""Batches as a rank trains on them: padded tensors and their weight in the loss."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from minitrain.data import Samples, Tokens, open_shard, open_targets
from minitrain.order import GlobalOrder, rank_part

# what torch.nn.functional.cross_entropy ignores by default
IGNORE_INDEX = -100


@dataclass(frozen=True)
class Batch:
    """What one rank computes in one step.

    ``inputs`` is what the model's loss is computed from. ``num_targets`` of the
    ``global_targets`` real targets of the global batch are here. ``digests`` are the
    SHA-256 of the samples, as numbers. ``step`` counts from 0 over all epochs.
    """

    step: int
    inputs: Any
    num_targets: int
    global_targets: int
    digests: tuple[int, ...]


class Batches(Protocol):
    """What the training loop and its replay know of a rank's data."""

    world_size: int

    def batch(self, step: int) -> Batch:
        """The batch of this rank at ``step``; the same whenever it is asked for."""
        ...

    def loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """Mean loss over the real targets of ``inputs``."""
        ...


def causal_lm_loss(model: nn.Module, inputs: Any) -> Tensor:
    """Mean loss over the real targets of ``inputs``: the output's 0-dim ``loss``."""
    loss: Tensor = model(**inputs).loss
    return loss


class RankBatches:
    """The batches of ``rank``, step by step, read from a folder of shards.

    ``inputs`` are ``input_ids`` and ``labels``, int64 of shape (B, block_size); padding
    is -100 in the labels. A sample's digest is that of its corpus position and tokens.

    A rank that owns no sample of a smaller last batch gets one of its samples
    with a ``num_targets`` of 0, so that it still takes part in the synchronisation.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        *,
        block_size: int,
        global_batch_size: int,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        self.rank, self.world_size, self.block_size = rank, world_size, block_size
        self.device = device
        self.shard: Samples = open_shard(folder, rank)
        self.targets = open_targets(folder)
        self.order = GlobalOrder(len(self.targets), global_batch_size, seed)

    def batch(self, step: int) -> Batch:
        """The batch of this rank at ``step``, counted from 0 over all epochs."""
        epoch, step_of_epoch = divmod(step, len(self.order))
        if epoch != self.order.epoch:
            self.order.set_epoch(epoch)
        everyone = self.order.batch(step_of_epoch)
        mine = rank_part(everyone, self.rank, self.world_size)
        present = mine if len(mine) else np.array([self.rank], np.int64)
        samples = [self.shard[i // self.world_size] for i in present]
        input_ids = torch.full((len(samples), self.block_size), 0, dtype=torch.int64)
        labels = torch.full_like(input_ids, IGNORE_INDEX)
        for row, tokens in enumerate(samples):
            values = torch.from_numpy(tokens.astype(np.int64))
            input_ids[row, : len(values)] = values
            labels[row, : len(values)] = values
        return Batch(
            step=step,
            inputs={
                "input_ids": input_ids.to(self.device),
                "labels": labels.to(self.device),
            },
            num_targets=int(self.targets[mine].sum()),
            global_targets=int(self.targets[everyone].sum()),
            digests=tuple(map(_digest, mine, samples)),
        )

    def loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """See :func:`causal_lm_loss`."""
        return causal_lm_loss(model, inputs)


def _digest(sample_id: int, tokens: Tokens) -> int:
    name = int(sample_id).to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(name + tokens.tobytes()).digest())
