"""Models for ``model.factory``, each with a feature that the default model lacks."""

from collections.abc import Callable
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


class Middle(nn.Module):
    """A layer that is a function of itself and (B, T, C); ``parts`` are its modules,
    parameters and buffers.
    """

    def __init__(self, compute: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            if type(part) is Tensor:
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.compute(self, hidden)


def batch_norm(params: Any, vocab_size: int) -> nn.Module:
    def over_tokens(own: Any, hidden: Tensor) -> Tensor:
        return own.layer(hidden.flatten(0, 1)).view_as(hidden)

    layer = nn.BatchNorm1d(params.n_embd)
    return Bigrams(params, vocab_size, Middle(over_tokens, layer=layer))


def counting(params: Any, vocab_size: int) -> nn.Module:
    """A buffer that changes, but is not read."""

    def count(own: Any, hidden: Tensor) -> Tensor:
        own.seen += len(hidden) * own.training
        return hidden

    seen = torch.zeros((), dtype=torch.int64)
    return Bigrams(params, vocab_size, Middle(count, seen=seen))


def with_mask(params: Any, vocab_size: int) -> nn.Module:
    """A buffer that never changes."""
    middle = Middle(
        lambda own, hidden: hidden * own.mask, mask=torch.ones(params.n_embd)
    )
    return Bigrams(params, vocab_size, middle)


def dropout(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, nn.Dropout(0.25))


def tied(params: Any, vocab_size: int) -> nn.Module:
    model = Bigrams(params, vocab_size, nn.Identity())
    model.head.weight = model.embedding.weight
    return model


def double(params: Any, vocab_size: int) -> nn.Module:
    return Bigrams(params, vocab_size, nn.Linear(params.n_embd, params.n_embd)).double()


def two_types(params: Any, vocab_size: int) -> nn.Module:
    """Trained parameters of float32 and float64."""
    layer = nn.Linear(params.n_embd, params.n_embd).double()
    middle = Middle(lambda own, x: own.layer(x.double()).to(x.dtype), layer=layer)
    return Bigrams(params, vocab_size, middle)


def transposed(params: Any, vocab_size: int) -> nn.Module:
    """A weight in column order: DDP's bucket holds it as it lies in memory."""
    model = Bigrams(params, vocab_size, nn.Identity())
    model.head.weight = nn.Parameter(model.head.weight.detach().t().contiguous().t())
    return model
