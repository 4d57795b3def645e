"""Trajectories of recordings: how far rounding may carry a tensor."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from recorded import CLASSES, Model, Tensors, adamw, alter, dealt, mean, record
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from minitrain.compare import align
from minitrain.compare.recordings import compare_recordings
from minitrain.recording.format import read_recording
from minitrain.recording.sketches import fit

SAME = "same computation within rounding"
START = 10


class Shifted(Model):
    """With a parameter that changes no probability: its gradient is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(16, 1024), nn.Linear(1024, CLASSES)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift


def plain(parameters: Any, lr: float) -> SGD:
    return SGD(parameters, lr=30 * lr)


def no_bias_on_rank_0(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    """As if each rank had an optimizer for a part of the parameters."""
    found = mean(own, rank, step)
    return {n: g for n, g in found.items() if rank or n != "out.bias"}


def doubled_bias(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    found = no_bias_on_rank_0(own, rank, step)
    return {n: 2 * g if n == "out.bias" else g for n, g in found.items()}


def test_gradient_that_rank_0_does_not_have(tmp_path: Path) -> None:
    same, other = no_bias_on_rank_0, doubled_bias
    a, b, c = (
        record(tmp_path / name, world_size=2, steps=3, optimizer=plain, reduce=reduce)
        for name, reduce in (("a", same), ("b", same), ("c", other))
    )
    assert compare_recordings(a, b).verdict == "equal bits"
    first = compare_recordings(a, c).first
    assert (first.step, first.what, first.tensor) == (0, "gradients", "out.bias")
    assert first.ranks == (1,)


def test_resume_from_one_recorded_step_under_adam(tmp_path: Path) -> None:
    """Adam makes whole steps of a gradient that is rounding alone."""
    saved: dict[str, Any] = {}

    def save(step: int, models: list[nn.Module], optimizers: list[Optimizer]) -> None:
        if step == START:
            one = models[0].state_dict(), optimizers[0].state_dict()
            saved["model"], saved["optimizer"] = deepcopy(one)

    def load(models: list[nn.Module], optimizers: list[Optimizer]) -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(deepcopy(saved["optimizer"]))

    def later(step: int, world_size: int, order: Tensor) -> list[Tensor]:
        return dealt(step + START, world_size, order)

    a = record(tmp_path / "a", model=Shifted, early=save)
    plan = {"model": Shifted, "steps": 14, "begin": load, "deal": later}
    b = record(tmp_path / "b", world_size=2, **plan)
    names = [name for name, _ in Shifted().named_parameters()]
    groups = [{"parameters": names, "settings": {"betas": [0.9, 0.999]}}]
    for folder, rank in ((a, 0), (b, 0), (b, 1)):
        alter(folder, rank, lambda row: row.update(groups=groups))
    found = compare_recordings(a, b)
    assert [step.step for step in found.steps] == [10, 20, 23]
    assert found.verdict == SAME
    # a step of another length is none
    c = record(tmp_path / "c", optimizer=lambda p, lr: adamw(p, 2 * lr), **plan)
    assert compare_recordings(a, c).verdict == "different"


def test_a_scalar_alone_determines_no_factor() -> None:
    """Its sketch has one number, and seven zeros."""

    def numbers(*values: float) -> Tensor:
        return torch.tensor([*values, *[0.0] * (8 - len(values))])

    assert fit(numbers(1.0), [numbers(2.0)]) is None
    # zeros of the target alone count
    for target in (numbers(1.0, 2.0), numbers(2.0)):
        assert fit(target, [numbers(2.0, 4.0)]) is not None


def test_rounding_is_the_larger_of_both_runs(tmp_path: Path) -> None:
    one = record(tmp_path / "a", steps=1)
    two = record(tmp_path / "b", steps=1)
    rows = [read_recording(folder) for folder in (one, two)]
    for entry in align.header(rows[1])["parameters"].values():
        entry["dtype"] = "float64"
    for pair in (rows, rows[::-1]):
        (place, *_) = align.places_of(*pair, None)
        assert {*place.trajectory.eps.values()} == {torch.finfo(torch.float32).eps}
