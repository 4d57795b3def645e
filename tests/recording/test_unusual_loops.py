"""Loops that use rare features of torch are recorded as others are, without alarms."""

import os
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from recorded_loops import Net, batch, loss_of, steps, steps_of
from torch import Tensor, nn
from torch.optim import LBFGS, SGD

import minitrain
from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.recording.alarm import Row
from minitrain.recording.clock import path_of_times
from minitrain.recording.format import read_recording


@pytest.mark.parametrize("adds", [False, True])
def test_gradients_of_autograd_grad(tmp_path: Path, adds: bool) -> None:
    """They replace those of the step before, or are added up over passes."""
    model = Net(dropout=0)
    parameters = [*model.parameters()]
    optimizer = SGD(parameters, lr=0.01)
    with minitrain.record(model, optimizer, tmp_path, every=1):
        for step in range(4):
            for micro in range(1 + 2 * adds):
                loss = loss_of(model, batch(step, 0, micro))
                found = torch.autograd.grad(loss, parameters)
                for parameter, one in zip(parameters, found, strict=True):
                    held = parameter.grad if micro else None
                    parameter.grad = one if held is None else held + one
            optimizer.step()
    assert read_recording(tmp_path).ranks[0].alarms == []
    counts = [len(row["inputs"]) for row in steps_of(tmp_path)]
    assert counts == [1 + 2 * adds] * 4


def test_step_after_an_error_in_a_closure_counts(tmp_path: Path) -> None:
    model = Net(dropout=0)
    optimizer = LBFGS(model.parameters(), max_iter=2)

    def closure(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        if step == 1:
            raise FloatingPointError
        loss.backward()
        return loss

    with minitrain.record(model, optimizer, tmp_path, every=1):
        for step in range(4):
            try:
                optimizer.step(lambda step=step: closure(step))
            except FloatingPointError:
                continue
    rows = steps_of(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row["without_gradient"] == []
        assert len(row["inputs"]) >= 1
        assert row["own"].keys() == row["gradients"].keys() == row["before"].keys()


@pytest.mark.parametrize(("makes_pass", "slow"), [(True, "data"), (False, "other")])
def test_what_precedes_a_closure_is_data_if_that_makes_the_pass(
    makes_pass: bool, slow: str, tmp_path: Path
) -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch(0))
        loss.backward()
        return loss

    with minitrain.record(model, optimizer, tmp_path, every=1000):
        for _ in range(12):
            loss = torch.zeros(()) if makes_pass else closure()
            time.sleep(0.03)
            optimizer.step(closure if makes_pass else lambda loss=loss: loss)
    parts = minitrain.show(tmp_path)["parts"]["all"]
    fast = "other" if makes_pass else "data"
    assert parts[f"{slow}_ms"] >= 30 > parts[f"{fast}_ms"]


def group_after_start(folder: Path) -> None:
    """As of processes that multiprocessing starts."""
    rank, store = int(os.environ["RANK"]), f"file://{folder}.store"
    model = nn.Linear(6, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RANK")
        patch.delenv("WORLD_SIZE")
        with minitrain.record(model, optimizer, folder):
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
            parallel = wrap_for_ddp(model)
            for step in range(3):
                parallel(batch(step, rank)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


@pytest.mark.slow
def test_times_of_ranks_whose_group_comes_after_the_start(tmp_path: Path) -> None:
    minitrain.launch(group_after_start, 2, tmp_path / "run")
    for rank in range(2):
        table = pd.read_csv(path_of_times(tmp_path / "run", rank), comment="#")
        assert len(table) == 3


def in_closures(folder: Path) -> list[Row]:
    with distributed(timeout_s=60) as (rank, _):
        model = wrap_for_ddp(nn.Linear(6, 1))
        optimizer = LBFGS(model.parameters(), max_iter=4)
        with minitrain.record(model, optimizer, folder, every=1):
            for step in range(3):
                x = batch(step, rank)

                def closure(x: Tensor = x) -> Tensor:
                    optimizer.zero_grad()
                    loss = (model(x) - 1).square().mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)
        return read_recording(folder).ranks[rank].alarms


@pytest.mark.slow
def test_evaluations_of_a_closure_are_no_micro_batches(tmp_path: Path) -> None:
    assert minitrain.launch(in_closures, 2, tmp_path) == [[], []]


class Padded(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nested.to_padded_tensor(super().forward(x), 0.0).sum()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_inputs_of_the_older_layout(tmp_path: Path) -> None:
    model = Padded(3, 1)
    both = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for _ in steps(tmp_path, model, num_steps=1):
        model(both).backward()
    times = pd.read_csv(path_of_times(tmp_path, 0), comment="#")
    assert times["samples"].tolist() == [2]
