"""Orders of addition, by hand: gloo's ring, whose bits are compared with gloo itself,
and the tree, whose work processes may share without a trace.
"""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitrain.comm.groups import distributed
from minitrain.comm.ring import MAX_SEGMENT_BYTES, ring_sum
from minitrain.comm.tree import tree_sum
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


def filled(*values: float) -> list[Tensor]:
    return [torch.full((2,), value) for value in values]


def test_order_of_addition_in_the_tree() -> None:
    # (0 + 2) + 1; from the left: (1e8 + 1) - 1e8 = 0
    assert tree_sum(filled(1e8, 1.0, -1e8)).tolist() == [1, 1]
    # (0 + 2) + (1 + 3); then 1 is lost in each pair
    assert tree_sum(filled(1e8, 1.0, -1e8, 1.0)).tolist() == [2, 2]
    assert tree_sum(filled(1e8, -1e8, 1.0, 1.0)).tolist() == [0, 0]
    # half = 3: 0 + 3 = 0, 1 + 4 = 2, 2; half = 2: (0 + 3) + 2 = 1, then 1 + 2
    assert tree_sum(filled(1e8, 1.0, 1.0, -1e8, 1.0)).tolist() == [3, 3]


@pytest.mark.parametrize("count", range(1, 10))
def test_sum_is_new_or_takes_the_place_of_a_buffer(count: int) -> None:
    for place in (None, *range(count)):
        buffers = filled(*range(count))
        total = tree_sum(buffers, out=None if place is None else buffers[place])
        total += 1
        expected = [*range(count)]
        if place is not None:
            expected[place] = sum(range(count)) + 1
        assert [b.tolist() for b in buffers] == [[x, x] for x in expected]
        assert total.tolist() == [sum(range(count)) + 1] * 2


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=200)
@given(st.lists(numbers, min_size=8, max_size=8), st.sampled_from([1, 2, 4, 8]))
def test_eight_slots_give_the_same_bits_for_any_number_of_owners(
    values: list[float], owners: int
) -> None:
    slots = filled(*values)
    sums = [tree_sum(slots[owner::owners]) for owner in range(owners)]
    # as integers: equal bits, minus zero and NaN (of inf - inf) too
    shared, alone = tree_sum(sums), tree_sum(slots)
    assert torch.equal(shared.view(torch.int32), alone.view(torch.int32))
