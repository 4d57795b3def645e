"""Texts drawn from models whose chances are known."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minitrain.data.text import VOCAB_SIZE
from minitrain.speech.speaker import LONGEST, NUM_TEXTS, TEMPERATURE, Mute, speak
from minitrain.train.rng import random_state, same_random_state

CERTAIN = 1e4


class Says(nn.Module):
    """At each place every token of ``places`` has its logit, others have none."""

    def __init__(self, *places: dict[str, float]) -> None:
        super().__init__()
        self.places = places

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        assert torch.equal(input_ids, labels)
        logits = torch.full((*input_ids.shape, VOCAB_SIZE), -CERTAIN)
        for place in range(input_ids.shape[1]):
            chances = self.places[place % len(self.places)]
            for letter, logit in chances.items():
                logits[:, place, ord(letter)] = logit
        return SimpleNamespace(loss=torch.tensor(1.0), logits=logits)


END = "\xff"


def said(model: nn.Module, block_size: int = 64, seed: int = 1) -> list[bytes]:
    return speak(model, block_size=block_size, seed=seed)


def test_what_is_certain_is_said_until_the_sample_ends() -> None:
    model = Says({"a": 0}, {"b": 0}, {END: 0}, {"c": 0})
    assert said(model) == [b"ab"] * NUM_TEXTS


@pytest.mark.parametrize(
    ("block_size", "tokens"), [(8, 7), (LONGEST, LONGEST - 1), (200, LONGEST - 1)]
)
def test_text_without_an_end_is_as_long_as_fits(block_size: int, tokens: int) -> None:
    assert said(Says({"a": 0}), block_size) == [b"a" * tokens] * NUM_TEXTS


class Echo(nn.Module):
    """Says the token that it was given last, plus one: 0xff, which begins, gives 0."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        ones = nn.functional.one_hot((input_ids + 1) % 256, VOCAB_SIZE)
        return SimpleNamespace(logits=CERTAIN * ones.float())


def test_each_token_is_drawn_from_what_was_said_before_it() -> None:
    assert said(Echo(), block_size=6) == [bytes([0, 1, 2, 3, 4])] * NUM_TEXTS


def test_same_dice_fall_the_same_way() -> None:
    coin = {"a": 0.0, "b": 0.0}
    first = said(Says(coin))
    assert first == said(Says(coin))
    assert first != said(Says(coin), seed=2)
    # each text has dice of its own, and both sides come up
    assert len({*first}) == NUM_TEXTS
    assert {*b"".join(first)} == {*b"ab"}
    # what differs by rounding says the same
    assert first == said(Says({"a": 0.0, "b": 1e-6}))


def test_what_is_likely_is_drawn_more_often_than_the_model_says() -> None:
    """9 to 1 after the temperature; by the model's own word it were 4.7 to 1."""
    gap = TEMPERATURE * torch.tensor(9.0).log().item()
    texts = b"".join(said(Says({"a": gap, "b": 0.0})))
    assert len(texts) == NUM_TEXTS * 63
    # of 189 draws 19 with a deviation of 4; without a temperature 33
    assert 11 <= texts.count(b"b") <= 27


class Restless(Says):
    """Draws in eval mode, too."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        output = super().forward(input_ids, labels)
        output.logits += torch.rand(1)
        output.logits[..., ord("a")] += torch.randn(1)
        return output


def test_model_that_draws_repeats_itself_and_leaves_no_trace() -> None:
    model = Restless({"a": 0.0, "b": 0.0})
    before = random_state()
    assert said(model) == said(model)
    assert same_random_state(before, random_state())


def test_model_speaks_in_eval_mode() -> None:
    model = Says({"a": 0}).train()
    said(model)
    assert not model.training


class Returns(nn.Module):
    """Whatever ``make(input_ids)`` gives."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return self.make(input_ids)


def of_shape(*shape: int) -> Any:
    return lambda ids: SimpleNamespace(logits=torch.zeros(*ids.shape, *shape))


def not_a_number(ids: Tensor) -> SimpleNamespace:
    return SimpleNamespace(logits=torch.full((*ids.shape, VOCAB_SIZE), torch.nan))


def broken(ids: Tensor) -> SimpleNamespace:
    raise ValueError("no such\nthing")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda ids: SimpleNamespace(loss=torch.tensor(1.0)), "its output has no logi"),
        (lambda ids: SimpleNamespace(logits=None), "its output has no logits"),
        (of_shape(255), r"its logits have shape \(3, 8, 255\), not \(B, T, 256\)"),
        (of_shape(), r"its logits have shape \(3, 8\), not \(B, T, 256\)"),
        (not_a_number, "its logits are not finite"),
        (broken, r"it fails in eval mode \(ValueError: no such thing\)"),
    ],
)
def test_model_that_cannot_be_sampled_says_why(make: Any, why: str) -> None:
    with pytest.raises(Mute, match=why):
        said(Returns(make), block_size=8)
