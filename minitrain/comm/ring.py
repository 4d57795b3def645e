"""Sum of gloo's ring all-reduce, repeated in one process with the same bits.

Nothing here communicates: a replay, which repeats a run in one process, sums with it.
Floating-point sums depend on their order. gloo cuts a buffer into one chunk per rank
and reduces each chunk along the ring, so the order differs between chunks but is fixed
by size and world size (gloo/allreduce.cc, algorithm RING).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_SEGMENT_BYTES = 1 << 20


def ring_sum(buffers: Sequence[Tensor]) -> Tensor:
    """Return the sum of one tensor (n,) per rank, with the bits of gloo's all-reduce.

    ``buffers`` have the same dtype and size, and are not changed. Chunk c is added up
    in the order of ranks c - 1, c - 2, ..., c, modulo the world size. The last chunks
    may be shorter than the others, or empty.
    """
    world_size, num_bytes = len(buffers), buffers[0].nbytes
    element_size = buffers[0].element_size()
    segments = max(-(-num_bytes // MAX_SEGMENT_BYTES), 2 * world_size)
    # rounded up to multiples, of ranks and of elements
    segments += -segments % world_size
    segment_bytes = -(-num_bytes // segments)
    segment_bytes += -segment_bytes % element_size
    chunk = segments // world_size * segment_bytes // element_size
    parts = []
    for index in range(world_size):
        cut = slice(index * chunk, (index + 1) * chunk)
        total = buffers[(index - 1) % world_size][cut].clone()
        for hop in range(2, world_size + 1):
            total += buffers[(index - hop) % world_size][cut]
        parts.append(total)
    return torch.cat(parts)
