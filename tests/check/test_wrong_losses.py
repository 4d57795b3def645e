"""Losses that are no mean over what is counted are not proven, right ones are.

Each case is a model, a loss, batches and a count; beside a wrong one stands a right
one that differs only in what is wrong.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from minitrain.check.data_parallel import check_data_parallel
from minitrain.core.errors import EvidenceError

pytestmark = pytest.mark.slow

PROVEN, IN_EVAL, REPLAY = "proven", "proven in eval mode", "replay only"
# a breach that names the weights
WRONG = "breach"
WEIGHTS = ("have the weights", "it is a sum")
WEIGHT = torch.tensor([1.0, 5.0])


class Words(nn.Module):
    """A language model; ``layer`` stands between embedding and head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(11, 16), layer
        self.head = nn.Linear(16, 11)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        hidden = self.layer(torch.tanh(self.embedding(input_ids[:, :-1])))
        logits = self.head(hidden).flatten(0, 1)
        return SimpleNamespace(loss=F.cross_entropy(logits, labels[:, 1:].flatten()))


def words(uneven: int, ranks: int = 2) -> list[Any]:
    """Five batches; in one of them the rows of rank 0 are short."""
    torch.manual_seed(0)
    ids = torch.randint(0, 11, (5, 6, 9))
    found = [{"input_ids": one, "labels": one.clone()} for one in ids]
    found[uneven]["labels"][::ranks, 3:] = -100
    return found


class Function(nn.Module):
    """A function of itself, with an inner layer, and the hidden state as a layer."""

    def __init__(
        self, function: Callable[[Any, Tensor], Tensor], inner: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.function, self.inner = function, inner
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.function(self, hidden)


def attention() -> nn.Module:
    inner = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
    return Function(lambda own, x: own.inner(x, x, x, need_weights=False)[0], inner)


def recurrent() -> nn.Module:
    inner = nn.LSTM(16, 16, 2, dropout=0.2, batch_first=True)
    return Function(lambda own, x: own.inner(x)[0], inner)


def attention_of_torch(module: nn.Module, hidden: Tensor) -> Tensor:
    p = 0.2 if module.training else 0.0
    return F.scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=p)


def noise(module: nn.Module, hidden: Tensor) -> Tensor:
    return hidden + 0.1 * torch.randn_like(hidden) if module.training else hidden


def counts(module: Any, hidden: Tensor) -> Tensor:
    if module.training:
        module.passes += 1
    return hidden


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Dropout(0.1),
    "functional dropout": lambda: Function(
        lambda own, x: F.dropout(x, 0.2, own.training)
    ),
    "attention": attention,
    "attention of torch": lambda: Function(attention_of_torch),
    "LSTM": recurrent,
    "buffer": lambda: Function(counts),
    "nothing": nn.Identity,
}


def language(layer: str) -> Callable[[], nn.Module]:
    return lambda: Words(LAYERS[layer]())


def noisy() -> nn.Module:
    return Words(Function(noise))


def rows(batch: Any) -> int:
    return len(batch["labels"])


# ---- a classifier with dropout, and losses of its own


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))


def steady() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))


def classes(where: int, count: int = 5, ranks: int = 2) -> list[Any]:
    """Batches with a rare class on rank 0 at one step."""
    chance = torch.Generator().manual_seed(0)
    found = []
    for step in range(count):
        labels = torch.zeros(6, dtype=torch.long)
        if step == where:
            labels[::ranks] = 1
        found.append((torch.randn(6, 6, generator=chance), labels))
    return found


def outlier() -> list[Any]:
    """One batch in which inputs are large."""
    found = classes(-1, 9)
    found[4] = (50 * found[4][0], 1 - found[4][1])
    return found


def weighted(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    return F.cross_entropy(logits, batch[1], weight=WEIGHT.to(logits.dtype))


def weighted_float32(model: nn.Module, batch: Any) -> Tensor:
    """The weights stay a constant in float32."""
    return F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHT)


def weights(batch: Any) -> Tensor:
    return WEIGHT[batch[1]].sum()


def summed(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def plain(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def similar(logits: Tensor) -> Tensor:
    """Each sample against the others of its batch."""
    one = F.normalize(logits, dim=1)
    return F.cross_entropy(one @ one.T, torch.arange(len(one)))


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    found = F.cross_entropy(logits, batch[1])
    return found + 0.1 * similar(logits) if model.training else found


def weighted_in_training(model: nn.Module, batch: Any) -> Tensor:
    return weighted(model, batch) if model.training else plain(model, batch)


class Casts(nn.Module):
    """Computes in bfloat16 by casts of its own."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 2)
        self.layers = nn.Sequential(*layers).to(torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs.to(torch.bfloat16)).float()


def gated(gate: Callable[[], Any]) -> Callable[[nn.Module, Any], Tensor]:
    """Pairs of samples count at some steps, which a random number decides."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return contrastive(model, batch) if gate() else plain(model, batch)

    return loss


def zero_head() -> nn.Module:
    """Every batch has the same loss at the start."""
    model = classifier()
    head: Any = model[-1]
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return model


def clamped() -> nn.Module:
    model = steady()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return model


class Centered(nn.Module):
    """Subtracts a moving average of the samples that the rank has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = classifier()
        self.register_buffer("center", torch.zeros(6))

    def forward(self, inputs: Tensor) -> Tensor:
        center = self.center
        if self.training:
            self.center = 0.9 * center + 0.1 * inputs.detach().mean(0)
        found: Tensor = self.layers(inputs - center)
        return found


class Watched(Centered):
    """The same average, which the loss does not use, and a buffer outside the state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(inputs + self.center)


class Balanced(nn.BatchNorm1d):
    """Batch norm that keeps a penalty on the mean of its batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.penalty = inputs.mean(0).square().sum() if self.training else 0.0
        return super().forward(inputs)


def with_penalty() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), Balanced(16), nn.Linear(16, 2))


def penalized(model: Any, batch: Any) -> Tensor:
    found = plain(model, batch)
    module = getattr(model, "module", model)
    return found + 0.1 * module[1].penalty


class Images(nn.Module):
    """Convolutions whose biases have a true gradient of zero."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.InstanceNorm2d(4)
        first, second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.net = nn.Sequential(first, norm, nn.ReLU(), second, norm)
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(images).mean((2, 3)))
        return found


def images() -> list[Any]:
    chance = torch.Generator().manual_seed(0)
    shape, labels = (8, 1, 9, 9), torch.arange(8) % 2
    return [(torch.randn(shape, generator=chance), labels) for _ in range(4)]


def thousands(model: nn.Module, batch: Any) -> Tensor:
    """A regression whose targets are in the thousands."""
    inputs = batch[0]
    return F.mse_loss(model(inputs)[:, 0], 3000 + 1000 * inputs.sum(1))


def spectral() -> nn.Module:
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 16))
    return nn.Sequential(first, nn.Dropout(0.1), nn.Linear(16, 2))


class Recomputed(nn.Module):
    """A reentrant checkpoint: its forward pass runs again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(6, 6), classifier()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        found: Tensor = checkpoint(self.layers, hidden, use_reentrant=True)
        return found


def gradient_penalty(model: nn.Module, batch: Any) -> Tensor:
    """As of a Wasserstein GAN: each sample's gradient has a norm near one."""
    inputs = batch[0].detach().clone().requires_grad_()
    logits = model(inputs)
    (slope,) = torch.autograd.grad(logits.sum(), inputs, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    return F.cross_entropy(logits, batch[1]) + 0.1 * penalty


@dataclass(frozen=True)
class Case:
    factory: Callable[[], nn.Module]
    batches: list[Any]
    verdict: str
    more: dict[str, Any] = field(default_factory=dict)
    # part of the line that gives the reason
    why: str = ""


DEPENDS = "in training a sample's loss depends on other samples of its batch"


def of_classes(verdict: str, why: str = "", **more: Any) -> Case:
    given = {"factory": classifier, "batches": classes(1), "loss": plain, **more}
    factory, batches = given.pop("factory"), given.pop("batches")
    return Case(factory, batches, verdict, given, why)


CASES = {
    # rows are counted and targets are meant, where the uneven batch lies
    **{
        f"rows in batch {step} over {ranks} ranks": Case(
            language("dropout"),
            words(step, ranks),
            WRONG,
            {"count": rows, "world_size": ranks},
        )
        for step, ranks in ((0, 2), (3, 2), (4, 3))
    },
    "targets in batch 3 over 3 ranks": Case(
        language("dropout"), words(3, 3), PROVEN, {"world_size": 3}
    ),
    # what draws and what remembers beside it
    **{
        f"rows beside {layer}": Case(language(layer), words(2), WRONG, {"count": rows})
        for layer in ("attention", "buffer")
    },
    **{
        f"targets beside {layer}": Case(language(layer), words(1), PROVEN)
        for layer in LAYERS
    },
    "rows beside noise": Case(noisy, words(2), WRONG, {"count": rows}),
    "targets beside noise": Case(noisy, words(1), IN_EVAL, why="other than dropout"),
    # class weights
    "class weights": of_classes(
        WRONG,
        "slices of the batch of step 3 have the weights 0.8333, 0.1667, by their "
        "targets 0.5, 0.5",
        loss=weighted,
        # which is no sampled step
        batches=classes(3, 7),
    ),
    "class weights, counted": of_classes(PROVEN, loss=weighted_float32, count=weights),
    # kinds of loss
    "a sum": of_classes(WRONG, loss=summed),
    "a mean": of_classes(PROVEN),
    "a mean with batch norm": of_classes(PROVEN, factory=normalized),
    # in training alone
    "class weights in training": of_classes(WRONG, loss=weighted_in_training),
    "contrastive": of_classes(REPLAY, DEPENDS, loss=contrastive),
    "contrastive in eval mode too": of_classes(
        REPLAY,
        DEPENDS,
        factory=steady,
        loss=lambda model, batch: similar(model(batch[0])),
    ),
    # pairs that a random number decides on
    **{
        f"contrastive by {name}": of_classes(IN_EVAL, loss=gated(gate))
        for name, gate in {
            "torch": lambda: torch.rand(()) < 0.3,
            "Python": lambda: random.random() < 0.7,
            "NumPy": lambda: np.random.rand() < 0.3,
        }.items()
    },
    # what shows only when training has begun, or at the gradient
    "class weights behind a zero head": of_classes(
        WRONG, factory=zero_head, loss=weighted, batches=classes(4, 9)
    ),
    "a clamped gradient": of_classes(
        REPLAY, DEPENDS, factory=clamped, batches=outlier()
    ),
    # buffers that remember samples
    "a moving average": of_classes(REPLAY, "depends on center", factory=Centered),
    "a moving average that is not used": of_classes(PROVEN, factory=Watched),
    "spectral norm": of_classes(PROVEN, factory=spectral),
    # batch norm of one's own
    "batch norm with a penalty": of_classes(
        REPLAY, DEPENDS, factory=with_penalty, loss=penalized
    ),
    # recomputed in the backward pass
    "a checkpoint": of_classes(PROVEN, factory=Recomputed),
    "a gradient penalty": of_classes(PROVEN, factory=steady, loss=gradient_penalty),
    # rounding that fixed tolerances did not allow
    "InstanceNorm": of_classes(PROVEN, factory=Images, batches=images()),
    "targets in the thousands": of_classes(
        PROVEN, factory=steady, loss=thousands, optimizer="sgd", learning_rate=1e-3
    ),
    # casts
    "class weights beside casts": of_classes(WRONG, factory=Casts, loss=weighted),
}


@pytest.mark.parametrize("name", CASES)
def test_loss(name: str) -> None:
    case = CASES[name]
    given: dict[str, Any] = {"timeout_s": 300, **case.more}
    try:
        ladder = check_data_parallel(case.factory, case.batches, **given)
        verdict, line = ladder.verdict, ladder.rests_on
    except EvidenceError as error:
        line = str(error).splitlines()[0]
        verdict = line.partition(":")[0]
    assert verdict == case.verdict, line
    assert case.why in line
    if verdict == WRONG:
        assert any(words in line for words in WEIGHTS), line
