"""gloo's ring in one process: its order by hand, then the bits against gloo itself."""

import pytest
import torch

from minitrain.comm.ring import MAX_SEGMENT_BYTES, ring_sum
from minitrain.harness.launcher import launch

SIZES = [1, 2, 3, 5, 7, 8, 11, 17, 100, 1000, 4097, 65537, 262_144, 300_000, 1_000_003]
# more segments than two for each rank
SIZES += [7 * MAX_SEGMENT_BYTES // 4, 11 * MAX_SEGMENT_BYTES // 4]


def test_order_of_addition_is_that_of_the_ring() -> None:
    # in float32 1e8 + 1 = 1e8. Chunk 0 starts with rank 2: (1 - 1e8) + 1e8 = 0;
    # chunk 1 with rank 0: (1e8 + 1) - 1e8 = 0; chunk 2 with rank 1: (-1e8 + 1e8) + 1
    ranks = [torch.full((6,), value) for value in (1e8, -1e8, 1.0)]
    assert ring_sum(ranks).tolist() == [0, 0, 0, 0, 1, 1]


def sums_that_differ(sizes: list[int]) -> list[int]:
    import torch.distributed as dist

    from minitrain.comm.groups import distributed

    different = []
    with distributed() as (rank, world_size):
        for size in sizes:
            seeds = [torch.Generator().manual_seed(r) for r in range(world_size)]
            buffers = [torch.randn(size, generator=seed) for seed in seeds]
            reduced = buffers[rank].clone()
            dist.all_reduce(reduced)
            if not torch.equal(reduced, ring_sum(buffers)):
                different.append(size)
    return different


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_same_bits_as_gloo(world_size: int) -> None:
    assert launch(sums_that_differ, world_size, SIZES) == [[]] * world_size
