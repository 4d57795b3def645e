"""Side effects of a forward pass, and which of them excuse a difference."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from subjects import make_run
from torch import Tensor, nn

from minitrain.check.data_parallel import check_data_parallel
from minitrain.proof.forward import DRAWS, NORMALIZES, Forward, forward_of
from minitrain.train.step_record import sha256_tensor

pytestmark = pytest.mark.slow

SAMPLES = 8
STEPS = 5


class Net(nn.Module):
    """Squared output of a linear layer after ``norm``."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.Identity()
        self.line = nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> SimpleNamespace:
        error = self.line(self.norm(x)).squeeze(-1) - y
        return SimpleNamespace(loss=error.square().mean())


class Counts(Net):
    """Counts samples, without using the count."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__(norm)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, y: Tensor) -> SimpleNamespace:
        if self.training:
            self.seen += len(x)
        return super().forward(x, y)


class Curriculum(Counts):
    """Changes the loss after a number of samples, which two ranks reach later."""

    def forward(self, x: Tensor, y: Tensor) -> SimpleNamespace:
        loss = super().forward(x, y).loss
        return SimpleNamespace(loss=loss if self.seen <= 2 * SAMPLES else 0.1 * loss)


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(SAMPLES, 4, generator=generator) for _ in range(STEPS)]
    return [{"x": x, "y": x.sum(1) + 1} for x in inputs]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_buffer_that_steers_the_loss_is_a_breach(optimizer: Any) -> None:
    """Two processes train differently from one, since each rank counts its own samples;
    replay and witness agree with the run.
    """
    options: Any = {"optimizer": optimizer, "learning_rate": 0.01}
    ladder = check_data_parallel(Curriculum, batches(), accept=["breach"], **options)
    # one process has seen more samples than two batches hold in the third step, two
    # ranks in the fifth
    assert {*ladder.breaches} == {"one_process_early", "one_process"}
    assert "seen" in ladder.rests_on
    assert "each rank's forward pass changes" in ladder.rests_on


def rows_of(
    start: nn.Module, *, draws: bool = False, first: bool = True, **changed: str
) -> list[dict[str, Any]]:
    """Two recorded steps of a rank; ``changed`` are the hashes after the second step,
    ``first`` is set if the first pass changed a buffer too.
    """
    buffers = {name: sha256_tensor(b) for name, b in start.named_buffers()}
    forward = {"draws_random_numbers": draws, "changes_buffers": first}
    return [
        {"kind": "forward", "rank": 0, **forward},
        {"kind": "tensors", "step": 0, "rank": 0, "buffers": buffers},
        {"kind": "tensors", "step": 1, "rank": 0, "buffers": {**buffers, **changed}},
    ]


def found(factory: Callable[[], nn.Module], **options: Any) -> Forward:
    rows = rows_of(factory(), **options)
    return forward_of(rows, replace(make_run(), factory=factory))


def test_without_a_change_there_is_nothing_to_ask_the_model() -> None:
    config = replace(make_run(), factory=lambda: pytest.fail("was asked"))
    assert forward_of(rows_of(Counts(), first=False), config) == Forward(None, [])


def test_excuses_by_hand() -> None:
    norm = {"norm.running_mean": "x"}
    both = Counts(nn.BatchNorm1d(4))
    assert found(Counts, seen="x") == Forward(None, ["seen"])
    # a later pass may be the first that changes something
    assert found(Counts, seen="x", first=False) == Forward(None, ["seen"])
    assert found(lambda: both, **norm) == Forward(NORMALIZES, [*norm])
    assert found(lambda: both, **norm, seen="x").why == NORMALIZES
    # the norm does not change, as in eval mode
    assert found(lambda: both, seen="x") == Forward(None, ["seen"])
    assert found(Counts, draws=True, seen="x") == Forward(DRAWS, ["seen"])
    # a buffer that a batch norm of one's own has is no statistic
    norm_alone = nn.BatchNorm1d(4)
    norm_alone.register_buffer("seen", torch.zeros(()))
    assert found(lambda: norm_alone, seen="x") == Forward(None, ["seen"])
    assert found(lambda: norm_alone, running_var="x").why == NORMALIZES


def test_a_buffer_that_two_modules_share_has_two_names() -> None:
    def factory() -> nn.Module:
        one, other = Counts(), Counts()
        other.seen = one.seen
        return nn.ModuleList([one, other])

    # recorded under its first name
    assert found(factory, **{"0.seen": "x"}).changed == ["0.seen", "1.seen"]
