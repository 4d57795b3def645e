from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.data.order import GlobalOrder, rank_part


def epoch_of(order: GlobalOrder, epoch: int = 0) -> list[list[int]]:
    order.set_epoch(epoch)
    return [order.batch(step).tolist() for step in range(len(order))]


@given(
    st.integers(1, 60), st.integers(1, 16), st.integers(0, 2**32 - 1), st.integers(0, 9)
)
def test_every_sample_once_an_epoch_in_full_batches_but_the_last(
    num_samples: int, batch_size: int, seed: int, epoch: int
) -> None:
    batches = epoch_of(GlobalOrder(num_samples, batch_size, seed), epoch)
    assert sorted(chain.from_iterable(batches)) == list(range(num_samples))
    full, rest = divmod(num_samples, batch_size)
    sizes = [len(batch) for batch in batches]
    assert sizes == [batch_size] * full + [rest] * (rest > 0)


def test_columns_hold_the_samples_that_are_dealt_to_them() -> None:
    # ten samples in four columns: 0 4 8 | 1 5 9 | 2 6 | 3 7
    order = GlobalOrder(10, 4, seed=0)
    batches = epoch_of(order)
    assert len(order) == 3
    columns = [[i % 4 for i in batch] for batch in batches]
    assert columns == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]
    first = order.batch(0)
    assert [*rank_part(first, 1, 2)] == [first[1], first[3]]


def test_same_seed_and_epoch_give_the_same_order() -> None:
    first, second = GlobalOrder(50, 8, seed=1), GlobalOrder(50, 8, seed=1)
    epoch_of(second, 7)
    assert epoch_of(first, 3) == epoch_of(second, 3)


@pytest.mark.parametrize(("seed", "epoch"), [(1, 1), (2, 0)], ids=["epoch", "seed"])
def test_another_order(seed: int, epoch: int) -> None:
    assert epoch_of(GlobalOrder(50, 8, seed), epoch) != epoch_of(GlobalOrder(50, 8, 1))
