"""Steps are counted once: by wrappers, subclasses, and optimizers made later."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_loops import Net, batch, loop, loss_of, record_loop, steps_of
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import minitrain
from minitrain.recording.fingerprint import fingerprint
from minitrain.recording.format import read_recording
from minitrain.recording.inputs import sample_digests


class InAccelerate(Optimizer):
    """As Accelerate wraps an optimizer: a class of torch's, but not set up as one."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


class Inherits(SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Unusual(SGD):
    """With the state of an 8-bit one, which cannot be read, and Adafactor's groups,
    which have no rate.
    """

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        group["lr"] = 0.1
        super().step(closure)
        group["lr"] = None
        for parameter in group["params"]:
            self.state[parameter] = {"codes": torch.empty(3, device="meta")}


def test_what_an_optimizer_does_not_tell_is_left_out_with_one_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Net()
    rows = record_loop(tmp_path, model, Unusual(model.parameters(), lr=0.1), 3)
    assert [row["lr"] for row in rows[1:]] == [[], []]
    assert capsys.readouterr().err.count("optimizer state in Tensor is not") == 1


@pytest.mark.parametrize("given", ["wrapper", "inside", "none"])
def test_the_step_of_a_wrapper_is_counted_once(tmp_path: Path, given: str) -> None:
    model = Net()
    inside = Inherits(model.parameters(), lr=0.1)
    wrapper = InAccelerate(inside)
    one = {"wrapper": wrapper, "inside": [inside], "none": None}[given]
    with minitrain.record(model, one, tmp_path, every=2):
        loop(model, wrapper, 5)
    rows = read_recording(tmp_path).ranks[0].steps
    assert [*rows] == [(0, 0), (0, 1), (0, 2), (0, 4)]
    assert all(row["gradients"] for row in rows.values())


@pytest.mark.parametrize("is_kept", [False, True])
def test_one_that_is_made_anew_has_the_passes_since_the_last(
    tmp_path: Path, is_kept: bool
) -> None:
    model, kept = Net(), []
    with minitrain.record(model, None, tmp_path, every=1) as recorder:
        for epoch in range(3):
            optimizer = SGD(model.parameters(), lr=0.1)
            kept.append(optimizer if is_kept else None)
            for step in range(4):
                loss_of(model, batch(step)).backward()
                recorder.loss(float(10 * epoch + step))
                optimizer.step()
                optimizer.zero_grad()
    for epoch in range(3):
        rows = steps_of(tmp_path, optimizer=epoch)
        assert [len(row["inputs"]) for row in rows] == [1] * 4
        assert [row["loss"] for row in rows] == [10 * epoch + step for step in range(4)]


def test_only_those_given_or_of_the_model_are_recorded(tmp_path: Path) -> None:
    model, other = Net(), Net()
    first = SGD(model.first.parameters(), lr=0.1)
    rest = SGD([*model.norm.parameters(), *model.last.parameters()], lr=0.2)
    with minitrain.record(model, rest, tmp_path):
        loop(other, SGD(other.parameters(), lr=0.1), 2)
        loss_of(model, batch(0)).backward()
        first.step()
        rest.step()
    ((number, row),) = read_recording(tmp_path).ranks[0].steps.items()
    assert (number, row["lr"], row["forwards"]) == ((0, 0), [0.2], 1)


def test_each_of_several_has_its_own_parameters_and_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of two networks that play against each other: one steps more often."""
    model = Net()
    model.spare = nn.Linear(2, 2)
    first = SGD(model.first.parameters(), lr=0.1)
    rest = SGD([*model.norm.parameters(), *model.last.parameters()], lr=0.2)
    with minitrain.record(model, [first, rest], tmp_path, every=4):
        for step in range(9):
            loss_of(model, batch(step)).backward()
            first.step()
            if step % 2:
                rest.step()
            first.zero_grad()
            rest.zero_grad()
    often, seldom = steps_of(tmp_path), steps_of(tmp_path, optimizer=1)
    assert [row["step"] for row in often] == [0, 1, 2, 4, 8]
    assert [row["step"] for row in seldom] == [0, 1, 2]
    assert [row["forwards"] for row in seldom] == [2, 4, 6]
    # its gradients of the pass before were dropped
    assert [len(row["inputs"]) for row in seldom] == [1, 1, 1]
    assert [len(row["inputs"]) for row in often] == [1] * 5
    assert {*seldom[0]["own"]} == {*seldom[0]["gradients"]}
    assert {*seldom[0]["parameters"]} == {
        *("norm.weight", "norm.bias", "last.weight", "last.bias")
    }
    # parameters without an optimizer are written with the first
    spare = ["spare.weight", "spare.bias"]
    assert [*often[0]["parameters"]] == ["first.weight", "first.bias", *spare]
    assert [row["not_held"] for row in often[:2]] == [[], spare]
    assert read_recording(tmp_path).ranks[0].end["steps"] == {"0": 9, "1": 4}
    assert "minitrain: recorded 9 steps, the first" in capsys.readouterr().err
    shown = minitrain.show(tmp_path)
    assert (shown["num_steps"], shown["num_recorded"]) == (9, 5)


def test_parameters_replaced_behind_the_optimizer_are_said(tmp_path: Path) -> None:
    model = nn.Linear(6, 1)
    for is_given in (True, False):
        optimizer, folder = SGD(model.parameters(), lr=0.1), tmp_path / str(is_given)
        with minitrain.record(model, optimizer if is_given else None, folder):
            loop(model, optimizer, 1)
            model.weight = nn.Parameter(model.weight.detach().clone())
            loop(model, optimizer, 1)
        assert [row["not_held"] for row in steps_of(folder)] == [[], ["weight"]]


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_loss_scaler_skips_is_none(tmp_path: Path, fused: bool) -> None:
    model = nn.Linear(6, 1)
    optimizer = Adam(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with minitrain.record(model, optimizer, tmp_path) as recorder:
        for step in range(4):
            loss = model(batch(step)).mean() * (1e39 if step == 1 else 1.0)
            recorder.loss(float(step))
            # some call it here, some after the step
            if fused:
                optimizer.zero_grad(set_to_none=False)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if not fused:
                optimizer.zero_grad()
    rows = steps_of(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [row["forwards"] for row in rows] == [1, 3, 4]
    # what led to the skipped step is not counted into the next
    assert [len(row["inputs"]) for row in rows] == [1, 1, 1]
    assert [row["loss"] for row in rows] == [0.0, 2.0, 3.0]
    assert rows[1]["inputs"][0] == sample_digests(batch(2))[0]


@pytest.mark.parametrize("clears", [True, False])
def test_sparse_gradient_that_is_set_to_zero_is_cleared(
    tmp_path: Path, clears: bool
) -> None:
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    with minitrain.record(model, optimizer, tmp_path):
        for step in range(3):
            model(torch.tensor([step, 0])).sum().backward()
            optimizer.step()
            if clears:
                optimizer.zero_grad(set_to_none=False)
    kept = [row.get("carried", []) for row in steps_of(tmp_path)]
    assert kept == ([[], [], []] if clears else [[], ["weight"], ["weight"]])


@pytest.mark.parametrize("is_unscaled", [False, True])
def test_gradients_of_a_fused_optimizer_are_unscaled(
    tmp_path: Path, is_unscaled: bool
) -> None:
    """It is given the gradients of the scaled loss, and the scale, a power of two."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    loss_of(model, batch(0)).backward()
    expected = {name: fingerprint(p.grad) for name, p in model.named_parameters()}
    model.zero_grad()
    optimizer = Adam(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with minitrain.record(model, optimizer, tmp_path):
        scaler.scale(loss_of(model, batch(0))).backward()
        if is_unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    (row,) = steps_of(tmp_path)
    assert row["gradients"] == expected


def train_compiled(folder: Path, compiled: str) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    make_step: Any = optimizer.step

    def train(x: Any) -> None:
        loss_of(model, x).backward()
        make_step()
        optimizer.zero_grad()

    if compiled == "step":
        make_step = torch.compile(make_step, backend="eager")
    if compiled == "all":
        train = torch.compile(train, backend="eager")
    with minitrain.record(model, optimizer, folder, every=2):
        for step in range(5):
            train(batch(step))
    return steps_of(folder)


# torch warns of itself where it compiles these
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", ["step", "all"])
def test_a_step_may_be_compiled(tmp_path: Path, compiled: str) -> None:
    rows = train_compiled(tmp_path / "compiled", compiled)
    assert [row["step"] for row in rows] == [0, 1, 2, 4]
    assert rows == train_compiled(tmp_path / "not", "nothing")
