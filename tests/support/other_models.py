"""Models for ``model.factory``, each with a feature that the default model lacks."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class Bigrams(nn.Module):
    """Bigram model with a special layer in the ``middle``."""

    def __init__(self, params: Any, vocab_size: int, middle: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, params.n_embd)
        self.middle = middle
        self.head = nn.Linear(params.n_embd, vocab_size, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        hidden = self.middle(self.embedding(input_ids[:, :-1]))
        logits = self.head(hidden).flatten(0, 1)
        targets = labels[:, 1:].flatten()
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, targets))


class OverTokens(nn.Module):
    """A layer for (N, C) applied to (B, T, C)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden.flatten(0, 1)).view_as(hidden)


class WithMask(nn.Module):
    """A buffer that never changes."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(n_embd))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.mask


class Counting(nn.Module):
    """A buffer that changes, but is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.seen += len(hidden)
        return hidden


class Turning(nn.Module):
    """A complex weight."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(n_embd, dtype=torch.complex64))

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden * self.turn).real


def batch_norm(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, OverTokens(nn.BatchNorm1d(params.n_embd)))


def counting(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, Counting())


def dropout(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, nn.Dropout(0.25))


def with_mask(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, WithMask(params.n_embd))


def tied(params: Any, vocab_size: int) -> nn.Module:
    model = Bigrams(params, vocab_size, nn.Identity())
    model.head.weight = model.embedding.weight
    return model


def double(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, nn.Linear(params.n_embd, params.n_embd)).double()


def transposed(params: Any, vocab_size: int) -> nn.Module:
    """A weight in column order: DDP's bucket holds it as it lies in memory."""
    model = Bigrams(params, vocab_size, nn.Identity())
    model.head.weight = nn.Parameter(model.head.weight.detach().t().contiguous().t())
    return model


def turning(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, Turning(params.n_embd))
