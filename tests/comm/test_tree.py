"""The tree's order by hand; then that processes may share its work without a trace."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitrain.comm.tree import tree_sum


def filled(*values: float) -> list[Tensor]:
    return [torch.full((2,), value) for value in values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((3.0,), 3.0, id="one"),
        pytest.param((3.0, 4.0), 7.0, id="two"),
        # in float32 1e8 + 1 = 1e8. From the left: (1e8 + 1) - 1e8 = 0
        pytest.param((1e8, 1.0, -1e8), 1.0, id="three: (0 + 2) + 1"),
        pytest.param((1e8, 1.0, -1e8, 1.0), 2.0, id="four: (0 + 2) + (1 + 3)"),
        pytest.param((1e8, -1e8, 1.0, 1.0), 0.0, id="four: 1 is lost in each pair"),
        # half = 3: 0 + 3 = 0, 1 + 4 = 2, 2; half = 2: (0 + 3) + 2 = 1, then 1 + 2
        pytest.param((1e8, 1.0, 1.0, -1e8, 1.0), 3.0, id="five: ((0+3)+2) + (1+4)"),
    ],
)
def test_order_of_addition(values: tuple[float, ...], expected: float) -> None:
    assert tree_sum(filled(*values)).tolist() == [expected, expected]


@pytest.mark.parametrize("count", range(1, 10))
def test_inputs_stay_and_the_result_is_new(count: int) -> None:
    buffers = filled(*range(count))
    total = tree_sum(buffers)
    total += 1
    assert [b.tolist() for b in buffers] == [[i, i] for i in range(count)]


@pytest.mark.parametrize("count", range(1, 10))
def test_result_may_take_the_place_of_a_buffer(count: int) -> None:
    for place in range(count):
        buffers = filled(*range(count))
        tree_sum(buffers, out=buffers[place])
        expected = [[float(i)] * 2 for i in range(count)]
        expected[place] = [sum(range(count))] * 2
        assert [b.tolist() for b in buffers] == expected


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


def test_other_ways_to_share_have_other_bits() -> None:
    """The test above could not pass by luck: owners of neighbors differ."""
    slots = list(torch.randn(8, 1000, generator=torch.Generator().manual_seed(0)))
    neighbors = [tree_sum(slots[:4]), tree_sum(slots[4:])]
    assert not torch.equal(tree_sum(neighbors), tree_sum(slots))
