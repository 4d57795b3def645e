"""Summation in a fixed binary tree: the same bits for any number of processes.

Floating-point sums depend on their order. Here tensors i and i + n/2 are added first,
for all i, then the n/2 sums in the same way, until one is left.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def tree_sum(buffers: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Return the sum of n >= 1 tensors ``buffers`` of one shape and dtype.

    While n > 1 are left, with half = ceil(n / 2): x[i] + x[i + half] replaces x[i] for
    every i < n - half. So W processes may each sum their tensors (rank r: r, r + W,
    ...) and then sum the results, both in this order: if n / W is a power of two, the
    bits are the same as with one process. With 8 tensors W may be 1, 2, 4 or 8.

    The sum is stored in ``out`` (which may be one of ``buffers``) or in a new tensor;
    ``buffers`` other than ``out`` are not changed.
    """
    terms = list(buffers)
    if len(terms) == 1:
        return terms[0].clone() if out is None else out.copy_(terms[0])
    while len(terms) > 2:
        half = -(-len(terms) // 2)
        sums = [a + b for a, b in zip(terms[:half], terms[half:], strict=False)]
        terms = sums + terms[len(sums) : half]
    return torch.add(*terms, out=out)


def shards_of(rank: int, world_size: int, num_shards: int) -> list[int]:
    """Return the logical shards (fixed parts of a global batch) of ``rank``: each shard
    s with ``s % world_size == rank``. ``num_shards`` is ``world_size`` times a power of
    two. For example, with 8 shards rank 0 of 2 has 0, 4, 2, 6.
    """
    # tree_sum adds the most distant shards first, s and s + num_shards / 2. In this
    # order they are neighbors, so a rank keeps one sum per level of the tree instead of
    # the gradients of all its shards.
    order, step = [rank], world_size
    while step < num_shards:
        order = [shard for first in order for shard in (first, first + step)]
        step *= 2
    return order
