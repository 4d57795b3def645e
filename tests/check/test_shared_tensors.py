"""What ranks lay down is what the reader takes, and equal states lie there once."""

import torch

from minitrain.check.shared_tensors import CHUNK, Shelf, Shelved


def test_every_kind_of_tensor_is_taken_as_it_was_laid() -> None:
    wanted = {
        "0/gradients/a": torch.randn(3, 4),
        "0/gradients/b": torch.randn(4, 3).T,
        "0/gradients/c": torch.tensor(2.5, dtype=torch.bfloat16),
        "0/before/d": torch.tensor([True, False]),
        "0/before/e": torch.zeros(0, 2),
        "0/before/f": torch.randn(2, dtype=torch.complex64),
    }
    with Shelf() as shelf:
        laid = Shelved(shelf.path)
        for key, tensor in wanted.items():
            laid[key] = tensor
        laid.close()
        taken = shelf.taken(laid)
    # the shelf is closed, and what was taken stays
    for key, tensor in wanted.items():
        assert taken[key].dtype == tensor.dtype
        assert torch.equal(taken[key], tensor)


def test_states_that_are_equal_lie_there_once() -> None:
    weight = torch.zeros(CHUNK)
    with Shelf() as shelf:
        laid = Shelved(shelf.path)
        laid["0/after/a"] = weight
        laid["1/before/a"] = weight.clone()
        laid["1/gradients/a"] = weight
        weight[-1] = -0.0
        laid["1/after/a"] = weight
        taken = shelf.taken(laid)
        laid.close()
    assert laid["0/after/a"] == laid["1/before/a"]
    assert laid["1/gradients/a"] != laid["0/after/a"]
    # other bits, though an equal number
    assert laid["1/after/a"] != laid["1/before/a"]
    assert str(taken["1/after/a"][-1]) == "tensor(-0.)"
    assert str(taken["1/before/a"][-1]) == "tensor(0.)"


def test_what_is_taken_is_nobody_elses() -> None:
    with Shelf() as shelf:
        laid = Shelved(shelf.path)
        laid["0/after/a"] = torch.ones(2)
        one, other = shelf.taken(laid), shelf.taken(laid)
        laid.close()
    one["0/after/a"].zero_()
    assert other["0/after/a"].tolist() == [1, 1]


def test_without_a_shelf_nothing_is_kept() -> None:
    forgotten = Shelved(None)
    forgotten["0/after/a"] = torch.ones(2)
    assert not forgotten
    forgotten.close()
