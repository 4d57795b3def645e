"""Micro-batches of a rank: padded tensors and their weight in the loss."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minitrain.core.errors import UserError
from minitrain.core.files import read_json
from minitrain.data.order import GlobalOrder, SampleIds, rank_part
from minitrain.data.shards import Tokens, open_shard, open_targets

# the default ignore_index of torch.nn.functional.cross_entropy
IGNORE_INDEX = -100


@dataclass(frozen=True)
class MicroBatch:
    """Input of one forward and backward pass.

    ``inputs`` hold ``num_targets`` of the ``global_targets`` real targets (not
    padding) of the global batch. ``digests``: SHA-256 of each sample as an integer;
    ``step``: number from 0 over all epochs; ``shard``: index of the samples' shard.
    """

    step: int
    inputs: Any
    num_targets: int
    global_targets: int
    digests: tuple[int, ...]
    shard: int


def causal_lm_loss(model: nn.Module, inputs: Any) -> Tensor:
    """Return the ``loss`` of ``model(**inputs)``: 0-dim, the mean over targets."""
    return model(**inputs).loss


@dataclass(frozen=True)
class ShardFiles:
    """Source of batches: ``folder``, which the shard stage wrote for ``num_files``
    ranks. The number of shards must be a multiple of ``num_files``.
    """

    folder: Path
    num_files: int
    block_size: int
    global_batch_size: int
    seed: int

    def open(
        self,
        shards: Sequence[int],
        num_shards: int,
        num_micro_batches: int = 1,
        device: torch.device | None = None,
    ) -> "RankBatches":
        """Return the batches of ``shards`` (indices, out of ``num_shards``), with
        ``num_micro_batches`` per shard and step, on ``device`` (None: CPU).
        """
        return RankBatches(self, shards, num_shards, num_micro_batches, device)

    def smaller(self) -> int | None:
        """Return the first step with a smaller global batch than step 0: the last step
        of the first epoch, or None if all batches have the same size.
        """
        count, size = len(open_targets(self.folder)), self.global_batch_size
        return count // size if count > size and count % size else None

    def digest(self) -> int:
        """Return a 64-bit hash of the data, equal for any number of ranks."""
        index = read_json(self.folder / "index.json", "samples_sha256")
        return int(index["samples_sha256"][:16], 16)


@dataclass
class RankBatches:
    """Batches of ``shards``, out of ``num_shards``, that one process computes.

    ``inputs`` are ``input_ids`` and ``labels``, int64 of shape (B, block_size), with
    padding as -100 in the labels. A sample's digest covers its corpus position and its
    tokens. A micro-batch without samples gets a filler sample and a ``num_targets`` of
    0, so that the rank still takes part in the synchronization. Raises UserError if
    there are fewer samples than shards.
    """

    data: ShardFiles
    shards: Sequence[int]
    num_shards: int
    num_micro_batches: int = 1
    device: torch.device | None = None

    def __post_init__(self) -> None:
        data = self.data
        needed = {shard % data.num_files for shard in self.shards}
        self.files = {file: open_shard(data.folder, file) for file in needed}
        self.targets = open_targets(data.folder)
        if self.num_shards > len(self.targets):
            raise UserError(
                f"{data.folder}: {len(self.targets)} samples cannot be cut into "
                f"{self.num_shards} shards"
            )
        self.order = GlobalOrder(len(self.targets), data.global_batch_size, data.seed)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of this rank at ``step`` (from 0 over all epochs),
        shard by shard; deterministic.
        """
        epoch, step_of_epoch = divmod(step, len(self.order))
        if epoch != self.order.epoch:
            self.order.set_epoch(epoch)
        everyone = self.order.batch(step_of_epoch)
        global_targets = int(self.targets[everyone].sum())
        return [
            self._batch(
                step, shard, mine[part :: self.num_micro_batches], global_targets
            )
            for shard in self.shards
            for mine in [rank_part(everyone, shard, self.num_shards)]
            for part in range(self.num_micro_batches)
        ]

    def _batch(
        self, step: int, shard: int, mine: SampleIds, global_targets: int
    ) -> MicroBatch:
        present = mine if len(mine) else np.array([shard], np.int64)
        num_files = self.data.num_files
        samples = [self.files[shard % num_files][i // num_files] for i in present]
        input_ids = torch.zeros(len(samples), self.data.block_size, dtype=torch.int64)
        labels = torch.full_like(input_ids, IGNORE_INDEX)
        for row, tokens in enumerate(samples):
            values = torch.from_numpy(tokens.astype(np.int64))
            input_ids[row, : len(values)] = values
            labels[row, : len(values)] = values
        inputs = {"input_ids": input_ids, "labels": labels}
        return MicroBatch(
            step=step,
            inputs={name: tensor.to(self.device) for name, tensor in inputs.items()},
            num_targets=int(self.targets[mine].sum()),
            global_targets=global_targets,
            digests=tuple(map(_digest, mine, samples)),
            shard=shard,
        )

    def loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """Return the :func:`causal_lm_loss` of ``inputs``."""
        return causal_lm_loss(model, inputs)


def _digest(sample_id: int, tokens: Tokens) -> int:
    name = int(sample_id).to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(name + tokens.tobytes()).digest())
