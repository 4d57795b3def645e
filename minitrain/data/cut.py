"""Global batches in memory, cut for the ranks along their first dimension."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.data.batches import IGNORE_INDEX, MicroBatch, RankBatches, ShardFiles


@dataclass(frozen=True)
class InMemory:
    """Global batches in memory, one a step, taken again from the first when they end:
    tensors, or lists, tuples and mappings of tensors. ``loss(model, inputs)`` is the
    mean over the targets of a batch or micro-batch, ``count(inputs)`` their number.
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
        """See :meth:`ShardFiles.open`; tensors stay where they are."""
        return CutBatches(self, shards, num_shards, num_micro_batches)

    def smaller(self) -> int | None:
        """The first batch with fewer samples than the first one, if any."""
        sizes = [len(tensors_of(batch)[0]) for batch in self.batches]
        return next((i for i, size in enumerate(sizes) if size < sizes[0]), None)

    def digest(self) -> int:
        """The start of the SHA-256 of the first sample, as a number."""
        first = [tensor[0] for tensor in tensors_of(self.batches[0])]
        return content_digest(first) >> 192


@dataclass
class CutBatches:
    """The batches of ``shards``: shard s has every ``num_shards``-th sample of a global
    batch, from the s-th on.
    """

    data: InMemory
    shards: Sequence[int]
    num_shards: int
    num_micro_batches: int

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """See :meth:`RankBatches.micro_batches`."""
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
        """Mean loss over the targets of ``inputs``: 0-dim, with a graph."""
        return self.data.loss(model, inputs)


# a source of batches, which is sent to the ranks, and what one of them trains on
Data = ShardFiles | InMemory
Batches = RankBatches | CutBatches


def cut(batch: Any, index: int, count: int) -> Any:
    """Return every ``count``-th sample of all tensors in ``batch``, from ``index`` on,
    in the same structure.
    """
    if isinstance(batch, Tensor):
        # a model may want to view it
        return batch[index::count].contiguous()
    if isinstance(batch, Mapping):
        return {key: cut(value, index, count) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [cut(value, index, count) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*values) if named else type(batch)(values)
    return batch


def tensors_of(batch: Any) -> list[Tensor]:
    """All tensors in ``batch``, in the order of its lists, tuples and mappings."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [tensor for value in batch for tensor in tensors_of(value)]
    return []


def count_targets(batch: Any) -> int:
    """Count the targets of ``batch``: labels that are not -100, but for the first of
    each row of ``labels`` (B, T). Without labels, the number of samples.
    """
    if isinstance(batch, Mapping) and "labels" in batch:
        labels: Tensor = batch["labels"]
        predicted = labels if labels.dim() == 1 else labels[:, 1:]
        return int((predicted != IGNORE_INDEX).sum())
    return len(tensors_of(batch)[0])


def bytes_of(tensor: Tensor) -> memoryview:
    """All bytes of a tensor, row after row, without a copy where they lie so."""
    whole = tensor.detach().cpu().contiguous()
    # one element counts as contiguous whatever its stride, and cannot be viewed then
    flat = whole.as_strided((whole.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def content_digest(sample: Iterable[Tensor]) -> int:
    """SHA-256 of the bytes of a sample's tensors, as a number."""
    digest = hashlib.sha256()
    for tensor in sample:
        digest.update(bytes_of(tensor))
    return int.from_bytes(digest.digest())
