"""What the recorder costs stays as it is, however long the run is."""

import gc
from pathlib import Path
from typing import Any

from recorded_loops import Net, batch, loop, loss_of, steps_of
from torch import nn
from torch.optim import SGD

import minitrain
from minitrain.recording.optimizers import IDLE


def listens(model: nn.Module) -> bool:
    """Whether own gradients are looked at, as at recorded steps."""
    return any(p._post_accumulate_grad_hooks for p in model.parameters())


def held(recorder: Any) -> int:
    """How many passes are kept."""
    return len(recorder._pages._passes)


def test_one_that_steps_seldom_has_all_its_passes(tmp_path: Path) -> None:
    model = Net()
    often = SGD(model.first.parameters(), lr=0.01)
    seldom = SGD(model.last.parameters(), lr=0.01)
    gap = IDLE // 2
    with minitrain.record(model, [often, seldom], tmp_path, every=1):
        for step in range(6 * gap):
            loss_of(model, batch(0)).backward()
            often.step()
            if step % gap == gap - 1:
                seldom.step()
    rows = steps_of(tmp_path, optimizer=1)
    assert [row["step"] for row in rows] == [*range(6)]
    assert [len(row["inputs"]) for row in rows] == [gap] * 6
    assert all(row["own"] for row in rows)


def test_one_that_has_gone_is_not_waited_for(tmp_path: Path) -> None:
    model = Net()
    with minitrain.record(model, None, tmp_path, every=1000):
        first = SGD(model.first.parameters(), lr=0.1)
        loop(model, first, 1)
        del first
        gc.collect()
        second = SGD(model.last.parameters(), lr=0.1)
        loop(model, second, 2)
        assert listens(model)
        loop(model, second, 1)
        assert not listens(model)


def test_one_that_steps_no_more_is_not_waited_for(tmp_path: Path) -> None:
    model = Net()
    first = SGD(model.first.parameters(), lr=0.1)
    second = SGD(model.last.parameters(), lr=0.1)
    with minitrain.record(model, None, tmp_path, every=10 * IDLE) as recorder:
        loop(model, first, 1)
        loop(model, second, IDLE)
        # it might come back
        assert listens(model)
        loop(model, second, 1)
        assert not listens(model)
        assert held(recorder) == 0
        # it does, and is recorded again
        loop(model, first, 2)
    rows = steps_of(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1]["gradients"]
    assert rows[2]["own"]
