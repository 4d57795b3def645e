"""Models that are copied instead of made anew: the same, or made anew after all."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from minitrain.testing.again import Again, Counted, Mould, NoCopy
from minitrain.train.rng import random_state, same_random_state, seed_everything


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.lstm = nn.LSTM(3, 3, 2)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def model_from(factory: Again, seed: int) -> Any:
    seed_everything(seed)
    return factory()


def test_each_seed_has_its_model_and_leaves_the_same_random_numbers() -> None:
    calls = []

    def build() -> nn.Module:
        calls.append(1)
        return Tied()

    factory = Again(build)
    first, after = model_from(factory, 1), random_state()
    again = model_from(factory, 1)
    assert len(calls) == 1
    assert same_random_state(after, random_state())
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    other = model_from(factory, 2)
    assert len(calls) == 2
    assert not torch.equal(first.head.weight, other.head.weight)


def test_copy_is_a_model_of_its_own_whose_ties_hold() -> None:
    factory = Again(Tied)
    model_from(factory, 1)
    one, other = model_from(factory, 1), model_from(factory, 1)
    assert one.head.weight is one.embedding.weight
    with torch.no_grad():
        one.head.weight.zero_()
        one.norm.running_mean.fill_(7)
    assert bool(other.head.weight.any())
    assert not other.norm.running_mean.any()
    x = torch.ones(2, 1, 3)
    one.lstm(x)[0].sum().backward()
    assert one.lstm.weight_ih_l0.grad is not None
    assert other.lstm.weight_ih_l0.grad is None


def test_model_that_a_copy_would_share_with_is_made_anew() -> None:
    def with_a_closure() -> nn.Module:
        model: Any = nn.Linear(2, 2)
        model.register_forward_hook(lambda _m, _x, y: y * model.weight.sum())
        return model

    factory = Again(with_a_closure)
    one, other = model_from(factory, 1), model_from(factory, 1)
    with torch.no_grad():
        one.weight.zero_()
    assert bool(other(torch.ones(2)).any())


def views() -> nn.Module:
    model, flat = nn.Linear(2, 2, bias=False), torch.zeros(8)
    model.register_buffer("left", flat[:4])
    model.register_buffer("right", flat[4:])
    return model


def hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight.register_hook(torch.neg)
    return model


def expanded() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("wide", torch.zeros(1).expand(3))
    return model


@pytest.mark.parametrize("build", [views, hooked, expanded])
def test_tensors_that_are_more_than_their_bytes_are_not_copied(
    build: Callable[[], nn.Module],
) -> None:
    model = build()
    with pytest.raises(NoCopy):
        Mould(model)


def test_ranks_are_sent_the_factory_alone() -> None:
    factory = Again(Tied)
    model_from(factory, 1)
    assert pickle.loads(pickle.dumps(factory))._made == []


def test_first_model_counted_is_the_first_given_out() -> None:
    factory = Counted(Tied)
    # the tied weight, the norm's two, and of each layer two matrices and two biases
    assert factory.parameters == 5 * 3 + 2 * 3 + 2 * (2 * 12 * 3 + 2 * 12)
    first: Any = factory()
    second = factory()
    assert first is not second
    seed_everything(0)
    assert torch.equal(first.head.weight, Tied().head.weight)
