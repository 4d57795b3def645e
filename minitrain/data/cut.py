"""Global batches in memory, split among ranks along the first dimension."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.data.batches import IGNORE_INDEX, MicroBatch, RankBatches, ShardFiles


@dataclass(frozen=True)
class InMemory:
    """Source of global batches in memory, one per step, repeated cyclically.

    A batch is a tensor, or a nested list, tuple or mapping of tensors.
    ``loss(model, inputs)`` returns the mean loss over the targets of a batch or
    micro-batch, ``count(inputs)`` the number of its targets.
    """

    batches: Sequence[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    count: Callable[[Any], int]

    def open(
        self,
        shards: Sequence[int],
        num_shards: int,
        num_micro_batches: int = 1,
        device: torch.device | None = None,
    ) -> "CutBatches":
        """Return batches as :meth:`ShardFiles.open` does; ``device`` is ignored."""
        return CutBatches(self, shards, num_shards, num_micro_batches)

    def smaller(self) -> int | None:
        """Return the index of the first batch smaller than batch 0, or None."""
        sizes = [len(tensors_of(batch)[0]) for batch in self.batches]
        return next((i for i, size in enumerate(sizes) if size < sizes[0]), None)

    def digest(self) -> int:
        """Return a 64-bit hash of the first sample, which stands for the data."""
        first = [tensor[0] for tensor in tensors_of(self.batches[0])]
        return content_digest(first) >> 192


@dataclass
class CutBatches:
    """Batches of ``shards`` for one process: shard s holds every ``num_shards``-th
    sample of a global batch, starting at sample s.
    """

    data: InMemory
    shards: Sequence[int]
    num_shards: int
    num_micro_batches: int

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of ``step``, shard by shard."""
        whole = self.data.batches[step % len(self.data.batches)]
        global_targets, count = self.data.count(whole), self.num_micro_batches
        return [
            MicroBatch(
                step=step,
                inputs=part,
                num_targets=self.data.count(part),
                global_targets=global_targets,
                digests=tuple(map(content_digest, zip(*tensors_of(part), strict=True))),
                shard=shard,
            )
            for shard in self.shards
            for mine in [cut(whole, shard, self.num_shards)]
            for part in (cut(mine, index, count) for index in range(count))
        ]

    def loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """Return the mean loss over the targets of ``inputs``, a 0-dim tensor."""
        return self.data.loss(model, inputs)


# Data is a source that is sent to all ranks, Batches what one rank opens
Data = ShardFiles | InMemory
Batches = RankBatches | CutBatches


def cut(batch: Any, index: int, count: int) -> Any:
    """Return ``batch`` with each tensor sliced by ``[index::count]``."""
    if isinstance(batch, Tensor):
        # a model may call view() on it
        return batch[index::count].contiguous()
    if isinstance(batch, Mapping):
        return {key: cut(value, index, count) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [cut(value, index, count) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*values) if named else type(batch)(values)
    return batch


def tensors_of(batch: Any) -> list[Tensor]:
    """Return all tensors in ``batch``, flattened in order."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [tensor for value in batch for tensor in tensors_of(value)]
    return []


def count_targets(batch: Any) -> int:
    """Return the number of targets of ``batch``: labels (B, T) other than -100, except
    the first of each row; if there are no labels, the number of samples.
    """
    if isinstance(batch, Mapping) and "labels" in batch:
        labels: Tensor = batch["labels"]
        predicted = labels if labels.dim() == 1 else labels[:, 1:]
        return int((predicted != IGNORE_INDEX).sum())
    return len(tensors_of(batch)[0])


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in row-major order, without a copy if contiguous."""
    whole = tensor.detach().cpu().contiguous()
    # a single element is contiguous with any stride, but view() needs a stride of 1
    flat = whole.as_strided((whole.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def content_digest(sample: Iterable[Tensor]) -> int:
    """Return the SHA-256 of the bytes of a sample's tensors, as an integer."""
    digest = hashlib.sha256()
    for tensor in sample:
        digest.update(bytes_of(tensor))
    return int.from_bytes(digest.digest())
