"""gloo's ring all-reduce, replayed in one process: the same order, the same bits.

Floating-point sums depend on their order. gloo cuts a buffer into one chunk per rank
and adds a chunk up along the ring, so the order differs from chunk to chunk but is
fixed by size and world size (gloo/allreduce.cc, algorithm RING).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_SEGMENT_BYTES = 1 << 20


def ring_sum(buffers: Sequence[Tensor]) -> Tensor:
    """Sum of one flat tensor per rank, with the bits of gloo's all-reduce.

    All of one dtype and shape (n,), which it leaves as they are; the sum is a new
    tensor of that shape. Chunk c is added up starting with rank c - 1 and going down
    the ring to rank c.
    """
    world_size = len(buffers)
    chunk = chunk_elements(buffers[0].nbytes, buffers[0].element_size(), world_size)
    parts = []
    for index in range(world_size):
        cut = slice(index * chunk, (index + 1) * chunk)
        total = buffers[(index - 1) % world_size][cut].clone()
        for hop in range(2, world_size + 1):
            total += buffers[(index - hop) % world_size][cut]
        parts.append(total)
    return torch.cat(parts)


def chunk_elements(num_bytes: int, element_size: int, world_size: int) -> int:
    """Elements in each of the ``world_size`` chunks of a buffer of ``num_bytes``, as
    gloo/allreduce.cc cuts it; the last chunks may be shorter, or empty.
    """
    segments = max(_ceil_div(num_bytes, MAX_SEGMENT_BYTES), 2 * world_size)
    segments = _round_up(segments, world_size)
    segment_bytes = _round_up(_ceil_div(num_bytes, segments), element_size)
    return segments // world_size * segment_bytes // element_size


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, multiple: int) -> int:
    return _ceil_div(a, multiple) * multiple
