"""A model's buffers: copied out, put back, compared."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Buffers = list[Tensor]


def copy_buffers(model: nn.Module) -> Buffers:
    """Copies of all buffers on their device, in the order of ``model.buffers()``."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def load_buffers(model: nn.Module, saved: Buffers) -> None:
    """Put copies back into the model, in place; ValueError for another count."""
    with torch.no_grad():
        for buffer, copy in zip(model.buffers(), saved, strict=True):
            buffer.copy_(copy)


def same_buffers(a: Buffers, b: Buffers) -> bool:
    """Whether two copies hold the same values (a NaN equals itself)."""
    pairs = zip(a, b, strict=True)
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in pairs)


@contextmanager
def untouched_buffers(model: nn.Module) -> Iterator[None]:
    """Whatever forward passes inside do to buffers is undone, after an error too."""
    saved = copy_buffers(model)
    try:
        yield
    finally:
        load_buffers(model, saved)
