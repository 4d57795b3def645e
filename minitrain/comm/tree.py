"""Sums in a fixed binary tree: the same bits however many processes share the work.

Floating-point sums depend on their order. This order halves: first slot i and slot
i + n/2 are added, for all i, then the same among the n/2 sums, until one is left.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def tree_sum(buffers: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Sum of n >= 1 tensors of one shape and dtype, which it leaves as they are.

    While n > 1 are left, with half = ceil(n / 2): x[i] + x[i + half] takes the place of
    x[i] for every i < n - half. So of n slots, W processes may each sum their own (r,
    r + W, r + 2W, ...) and then sum their sums, both in this order: wherever n / W is a
    power of two, the bits are those of one process. 8 slots: 1, 2, 4 or 8 processes.

    The result goes to ``out``, which may be one of the buffers, or to a new tensor.
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
    """The logical shards that ``rank`` computes, so ordered that neighbors are added
    first: with 8 shards, rank 0 of 2 computes 0, 4, 2, 6.

    Shard s lies where ``s % world_size`` says, as samples do. ``num_shards`` is
    ``world_size`` times a power of two.
    """
    # tree_sum adds the most distant shards first, s and s + num_shards / 2. In this
    # order they follow each other, so that a rank needs to keep only one sum of each
    # level of the tree, and not the gradients of all of its shards.
    order, step = [rank], world_size
    while step < num_shards:
        order = [shard for first in order for shard in (first, first + step)]
        step *= 2
    return order
