"""Batches as the witness handles them: cut, in float64, and each sample by name."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def cuts(batch: Any, count: int) -> list[Any]:
    """A batch in so many parts: every ``count``-th sample of all its tensors."""
    most = min([count, *map(len, tensors_of(batch))])
    return [chosen(batch, slice(index, None, count)) for index in range(most)]


def chosen(batch: Any, rows: list[int] | slice) -> Any:
    """Those samples of a batch, in that order."""
    return mapped(batch, lambda tensor: tensor[rows].contiguous())


def doubled(batch: Any) -> Any:
    """A batch with its real numbers in float64."""
    return mapped(batch, lambda t: t.double() if t.is_floating_point() else t)


def names_of(batch: Any) -> list[str]:
    """Of each sample the start of the SHA-256 of all its tensors' bytes."""
    names = []
    for rows in zip(*tensors_of(batch), strict=True):
        digest = hashlib.sha256()
        for row in rows:
            digest.update(bytes_of(row))
        names.append(digest.hexdigest()[:16])
    return names


def bytes_of(tensor: Tensor) -> memoryview:
    """Of all elements, row after row; a copy only of what does not lie so."""
    dense = tensor.detach().reshape(-1)
    if dense.stride() != (1,) or dense.is_conj() or dense.is_neg():
        dense = torch.empty(dense.shape, dtype=dense.dtype).copy_(dense)
    return dense.view(torch.uint8).numpy().data


def tensors_of(batch: Any) -> list[Tensor]:
    """All tensors in a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = [*batch.values()]
    if isinstance(batch, list | tuple):
        return [tensor for value in batch for tensor in tensors_of(value)]
    return []


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with all its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        changed = [mapped(value, change) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*changed) if named else type(batch)(changed)
    return batch
