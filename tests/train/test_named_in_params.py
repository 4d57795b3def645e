"""What the names of precisions and optimizers stand for."""

import pytest
import torch

from minitrain.train.config import OPTIMIZERS
from minitrain.train.precision import PRECISIONS, SIXTEEN_BITS, Name, Precision


@pytest.mark.parametrize("name", PRECISIONS)
def test_products_have_the_type_that_is_named(name: Name) -> None:
    with Precision(name).autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == SIXTEEN_BITS.get(name, torch.float32)


def test_optimizers_are_those_of_torch_with_that_name() -> None:
    assert all(one.__name__.lower() == name for name, one in OPTIMIZERS.items())
