"""Passes in eval mode after training: who cannot make one says why, on all ranks."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from subjects import Bigrams, make_run
from torch import Tensor, nn

from minitrain.check.data_parallel import examine
from minitrain.sync.catalog import find_strategy
from minitrain.train.worker import Worker

pytestmark = pytest.mark.slow


class Auxiliary(Bigrams):
    """A head that is there in training alone."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(16))
        self.auxiliary = nn.Linear(16, 61)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        found = super().forward(input_ids, labels)
        if not self.training:
            return found
        logits = self.auxiliary(self.embedding(input_ids[:, :-1]).flatten(0, 1))
        more = nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
        return SimpleNamespace(loss=found.loss + 0.3 * more)


@pytest.mark.parametrize("sync", ["ddp", "flat", "shm"])
def test_head_that_eval_mode_does_not_use(sync: str) -> None:
    """DDP would never reduce a bucket that holds an unused parameter."""
    trial = replace(make_run(), factory=Auxiliary, sync=find_strategy(sync))
    ladder = examine(trial, 2, timeout_s=60)
    assert ladder.rungs["witness_probe"].verdict == "not run"
    unused = "in eval mode: parameter auxiliary.weight is not used"
    assert ladder.rungs["witness_probe"].detail == unused
    # the steps themselves are compared
    assert ladder.verdict == "proven"


def cannot_on_rank_1(worker: Worker) -> None:
    right = worker.batches.loss

    def loss(model: nn.Module, inputs: Any) -> Tensor:
        if worker.rank == 1 and not model.training:
            raise ValueError("not here")
        return right(model, inputs)

    worker.batches.loss = loss  # type: ignore[method-assign]


def test_one_rank_that_cannot_hangs_no_other() -> None:
    ladder = examine(make_run(), 2, cannot_on_rank_1, timeout_s=30)
    why = "in eval mode: ValueError: not here"
    assert ladder.rungs["witness_probe"].detail == why
