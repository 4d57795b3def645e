"""Each fault in a loop of two ranks is reported, and the right loop has no word."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded_loops import batch, loop, loss_of, plain, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

import minitrain
from minitrain.comm.groups import distributed
from minitrain.compare.difference import What
from minitrain.compare.recordings import compare_recordings
from minitrain.recording.format import read_recording

STEPS = 6
record = partial(minitrain.record, every=1)
# a loop, recorded in a folder: whether it has the fault, and the rank
Loop = Callable[[Path, bool, int], None]


def not_cleared(folder: Path, fault: bool, rank: int) -> None:
    model = DistributedDataParallel(plain())
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model, optimizer, folder):
        for step in range(STEPS):
            # zeros are as good as none, before the backward pass or after the step
            loss = loss_of(model, batch(step, rank))
            if not fault:
                optimizer.zero_grad(set_to_none=step < 2)
            loss.backward()
            optimizer.step()


def another_model(folder: Path, fault: bool, rank: int, given: bool = True) -> None:
    inner = plain()
    model = DistributedDataParallel(inner)
    optimizer = SGD((plain() if fault else inner).parameters(), lr=0.01)
    with record(model, optimizer if given else None, folder):
        for step in range(STEPS):
            loss_of(model, batch(step, rank)).backward()
            optimizer.step()
            inner.zero_grad()


class Averages(Optimizer):
    """Averages, or sums, gradients in its step: all of them but ``left_out``."""

    def __init__(
        self, model: nn.Module, left_out: int = -1, divides: bool = True
    ) -> None:
        super().__init__(model.parameters(), {"lr": 0.01})
        self.left_out, self.divides = left_out, divides

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            gradient = parameter.grad.clone()
            if number != self.left_out:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size() if self.divides else 1
            parameter.add_(gradient, alpha=-self.param_groups[0]["lr"])


def reduced_in_step(folder: Path, fault: bool, rank: int, **wrong: Any) -> None:
    model = plain()
    optimizer = Averages(model, **wrong if fault else {})
    for step in steps(folder, model, optimizer, STEPS):
        loss_of(model, batch(step, rank)).backward()


def not_finite(folder: Path, fault: bool, rank: int) -> None:
    model = DistributedDataParallel(plain())
    for step in steps(folder, model, num_steps=STEPS):
        x = batch(step, rank)
        if fault and rank == 1 and step == 3:
            x[0, 0] = torch.nan
        loss_of(model, x).backward()


def skipped(folder: Path, fault: bool, rank: int) -> None:
    """A rank leaves out the backward pass of a batch; right if all leave out one."""
    model = DistributedDataParallel(plain())
    for step in steps(folder, model, num_steps=STEPS):
        for part in range(1 + (fault and rank == 1 and step == 3)):
            loss = loss_of(model, batch(step, rank, part))
        loss.backward()


def padded(folder: Path, fault: bool, rank: int) -> None:
    model = DistributedDataParallel(plain())
    optimizer = SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(batch(0, size=17 if fault else 18))
    sampler = torch.utils.data.DistributedSampler(data, 2, rank)
    with record(model, optimizer, folder):
        for (x,) in torch.utils.data.DataLoader(data, 3, sampler=sampler):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()


def beside(folder: Path, fault: bool, rank: int) -> None:
    model, average = DistributedDataParallel(plain()), plain()
    if fault and rank:
        nn.init.zeros_(average[0].bias)
    for step in steps(folder, model, num_steps=STEPS, also={"ema": average}):
        loss_of(model, batch(step, rank)).backward()


def two_networks(folder: Path, fault: bool, rank: int) -> None:
    """Return words of a GAN: in one recording, and in two of which one is nested."""
    torch.manual_seed(0)
    makes, judges = (
        DistributedDataParallel(nn.Linear(4, 6)),
        DistributedDataParallel(plain()),
    )
    first, second = SGD(makes.parameters(), lr=0.01), SGD(judges.parameters(), lr=0.01)
    both = nn.ModuleDict({"makes": makes, "judges": judges})
    together = record(both, [first, second], folder)
    one = record(makes, first, folder / "makes")
    other = record(judges, second, folder / "judges")
    with together, one, other:
        for step in range(STEPS):
            noise = batch(step, rank)[:, :4]
            second.zero_grad()
            real, made = judges(batch(step, rank, 1)), judges(makes(noise).detach())
            (made.square().mean() + (real - 1).square().mean()).backward()
            second.step()
            first.zero_grad()
            (judges(makes(noise)) - 1).square().mean().backward()
            # one rank never reduces what the first makes
            if fault and rank == 1 and step == 3:
                makes.module.weight.grad *= 2
            first.step()


def static_graph(folder: Path, fault: bool, rank: int) -> None:
    model = DistributedDataParallel(plain(), static_graph=True)
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model, optimizer, folder):
        if fault:
            # torch fails in its backward pass
            with model.no_sync():
                model(batch(0))
            return
        loop(model, optimizer, 1, rank=rank)
        loop(model, optimizer, STEPS, rank=rank, micro=2)


def never_reduced(folder: Path, fault: bool, rank: int) -> None:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(plain())
    model.set_requires_gradient_sync(not fault)
    for step in steps(folder, model, num_steps=STEPS):
        loss_of(model, batch(step, rank)).backward()


# what is found first of the fault: kind, rule, step, ranks and part of the line
FAULTS: dict[str, tuple[Loop, tuple[str, str, int, list[int], str]]] = {
    "not cleared": (not_cleared, ("alarm", "zero_grad", 1, [], "no zero_grad()")),
    "held": (another_model, ("alarm", "not held", 1, [], "no parameter of the model")),
    "unseen": (
        partial(another_model, given=False),
        ("alarm", "steps", 0, [], "no parameter has"),
    ),
    "left out": (
        partial(reduced_in_step, left_out=2),
        ("alarm", "parameters", 0, [1], "not this one"),
    ),
    "summed": (
        partial(reduced_in_step, divides=False),
        ("note", "mean", 1, [], "their sum"),
    ),
    "NaN": (not_finite, ("note", "not finite", 3, [1], "inputs that are not finite")),
    "skipped": (skipped, ("note", "steps", 3, [1], "backward pass was skipped")),
    "padded": (padded, ("note", "padding", 2, [1], "DistributedSampler pads")),
    "beside": (beside, ("alarm", "also", 0, [1], "ema.0.bias")),
    "static": (static_graph, ("alarm", "static graph", 0, [], "first pass that")),
    "sharded": (never_reduced, ("alarm", "no gradient", 1, [0, 1], "never reduced")),
    "two": (
        two_networks,
        ("alarm", "gradients", 3, [1], "tensor makes.weight, rank 1: 2 times"),
    ),
}
# notes of right loops
EXPECTED = {"left out": {"averaged in step"}, "summed": {"averaged in step"}}


def run_all(folder: Path) -> None:
    with distributed() as (rank, _):
        for name, (one, _) in FAULTS.items():
            for fault in (True, False):
                one(folder / name / str(fault), fault, rank)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults")
    minitrain.launch(run_all, 2, made)
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_and_the_right_loop_is_silent(
    folder: Path, name: str
) -> None:
    kind, rule, step, ranks, part = FAULTS[name][1]
    found = read_recording(folder / name / "True").ranks[0].alarms
    lines = [row["line"] for row in found]
    first = next((row for row in found if row["rule"] == rule), None)
    assert first is not None, lines
    assert (first["kind"], first["step"], first["ranks"]) == (kind, step, ranks), lines
    assert part in first["line"]
    for recording in [folder / name / "False", *(folder / name / "False").iterdir()]:
        if recording.is_dir():
            for one in read_recording(recording).ranks.values():
                words = {row["rule"]: row["line"] for row in one.alarms}
                assert words.keys() <= EXPECTED.get(name, set()), words


def test_average_in_the_step_is_compared_with_the_whole_batch(
    folder: Path, tmp_path: Path
) -> None:
    model = plain()
    for step in steps(tmp_path, model, num_steps=STEPS):
        loss_of(model, torch.cat([batch(step, rank) for rank in range(2)])).backward()
    right = compare_recordings(tmp_path, folder / "summed" / "False")
    assert right.verdict == "same computation within rounding"
    summed = compare_recordings(folder / "summed" / "True", tmp_path)
    assert summed.verdict == "different"
    assert summed.first is not None
    assert (summed.first.step, summed.first.what) == (0, What.PARAMETERS)
