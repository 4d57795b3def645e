"""What is written of a run, and that the run is the same as without it."""

import copy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded import buffers_of
from recorded_loops import (
    Net,
    batch,
    loop,
    loss_of,
    record_loop,
    state_bytes,
    steps,
    steps_of,
)
from torch import nn
from torch.optim import SGD, AdamW

import minitrain
from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.core.errors import UserError
from minitrain.data.cut import content_digest
from minitrain.recording.fingerprint import digest, fingerprint
from minitrain.recording.format import path_of_rank, read_recording


def recorded(model: nn.Module, optimizer: Any, folder: Path | None) -> Any:
    """Recorded where there is a ``folder``; modules too."""
    if folder is None:
        return nullcontext()
    return minitrain.record(model, optimizer, folder, every=3, modules=True)


def train_alone(folder: Path | None, micro: int = 1) -> list[bytes]:
    torch.manual_seed(0)
    model = Net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    with recorded(model, optimizer, folder):
        loop(model, optimizer, micro=micro)
    return state_bytes(model, optimizer)


def train_together(folder: Path | None, with_view: bool) -> list[bytes]:
    """A rank under DDP, whose first of two passes does not synchronize."""
    with distributed() as (rank, _):
        torch.manual_seed(rank)
        model = wrap_for_ddp(Net(), gradient_as_bucket_view=with_view)
        optimizer = AdamW(model.parameters(), lr=1e-2)
        with recorded(model, optimizer, folder):
            loop(model, optimizer, rank=rank, micro=2)
        dist.barrier()
        return state_bytes(model, optimizer)


def test_a_step_has_what_the_loop_did(tmp_path: Path) -> None:
    """Worked out beside the recorder."""
    torch.manual_seed(0)
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.25)
    start = {name: digest(p) for name, p in model.named_parameters()}
    buffers = buffers_of(model)
    with minitrain.record(model, optimizer, tmp_path) as recorder:
        told = loss_of(model, batch(0))
        recorder.loss(told)
        value = float(told.detach())
        recorder.loss(value + 1)
        told.backward()
        # as for a mean over micro-batches, which is not what was recorded
        told.detach().mul_(4)
        gradients = {n: fingerprint(p.grad) for n, p in model.named_parameters()}
        optimizer.step()
    one = read_recording(tmp_path).ranks[0]
    assert one.header["start"] == start
    assert one.header["parameters"]["first.weight"] == {
        "shape": [16, 6],
        "dtype": "float32",
        "trained": True,
    }
    row = one.steps[0, 0]
    assert row["inputs"] == [[f"{content_digest([x]):064x}"[:16] for x in batch(0)]]
    assert row["loss"] == pytest.approx(value + 0.5)
    assert row["lr"] == [0.25]
    (group,) = row["groups"]
    assert group["parameters"] == [*start]
    assert group["settings"].items() >= {"momentum": 0, "nesterov": False}.items()
    assert not {"lr", "params", "foreach"} & {*group["settings"]}
    assert row["gradients"] == gradients
    assert row["own"] == {name: one["sketch"] for name, one in gradients.items()}
    assert row["before"] == start
    assert row["buffers"] == buffers
    assert row["parameters"] == {n: fingerprint(p) for n, p in model.named_parameters()}
    assert row["draws"] is True
    assert (row["wrapper"], row["wrapper_id"], row["synced"]) == ("", 0, None)
    assert (row["not_held"], row["without_gradient"]) == ([], [])
    assert one.end
    assert (one.end["steps"], one.end["forwards"]) == ({"0": 1}, 1)
    assert one.end["parameters"] == row["parameters"]
    assert one.end["buffers"] == buffers_of(model) != buffers
    assert one.alarms == []


def test_draws_are_those_of_a_pass_and_its_loss(tmp_path: Path) -> None:
    """Draws of the loop, before the first pass or between two, do not count."""

    def draw() -> float:
        return float(torch.rand(()))

    class Draws(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (draw() if step == 2 else 1)

    model = Draws(3, 2)
    for step in steps(tmp_path, model, num_steps=4):
        for _ in range(2):
            draw()
            (model(torch.ones(4, 3)).sum() * (draw() if step == 1 else 1)).backward()
    assert [row["draws"] for row in steps_of(tmp_path)] == [False, True, True, False]


def test_first_steps_and_every_so_many(tmp_path: Path) -> None:
    model = Net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    rows = record_loop(tmp_path, model, optimizer, 11, every=3)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 6, 9]
    assert [row["forwards"] for row in rows] == [1, 2, 3, 4, 7, 10]
    for row in rows:
        (inputs,) = row["inputs"]
        expected = [f"{content_digest([x]):064x}"[:16] for x in batch(row["step"])]
        assert inputs == expected
        assert row["own"].keys() == row["gradients"].keys()
    after = [{n: p["hash"] for n, p in row["parameters"].items()} for row in rows]
    assert [row["before"] for row in rows[1:4]] == after[:3]
    assert len({str(row["moments"]) for row in rows}) == len(rows)


@pytest.mark.parametrize("micro", [1, 3])
def test_the_run_has_the_same_bits_without_a_recorder(
    tmp_path: Path, micro: int
) -> None:
    assert train_alone(tmp_path, micro=micro) == train_alone(None, micro=micro)
    rows = steps_of(tmp_path)
    assert all(len(row["inputs"]) == micro for row in rows)


@pytest.mark.parametrize("with_view", [False, True])
def test_ranks_have_the_same_bits_without_a_recorder(
    tmp_path: Path, with_view: bool
) -> None:
    plain = minitrain.launch(train_together, 2, None, with_view)
    assert minitrain.launch(train_together, 2, tmp_path, with_view) == plain
    recording = read_recording(tmp_path)
    assert recording.missing == []
    assert [len(one.steps) for one in recording.ranks.values()] == [5, 5]
    for rows in zip(*(steps_of(tmp_path, rank) for rank in (0, 1)), strict=True):
        assert rows[0]["wrapper"] == "DistributedDataParallel"
        assert rows[0]["wrapper_id"] == 1
        assert rows[0]["syncs"] == [False, True]
        assert rows[0]["buffers"] == rows[1]["buffers"]
        assert rows[0]["inputs"] != rows[1]["inputs"]
        assert rows[0]["random"] != rows[1]["random"]


def test_nothing_is_left_of_the_hooks(tmp_path: Path) -> None:
    from torch.nn.modules import module
    from torch.optim import optimizer as optimizers

    def hooks() -> list[int]:
        places = ["_global_module_registration_hooks", "_global_forward_pre_hooks"]
        steps = ["_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"]
        return [
            *(len(getattr(module, name)) for name in places),
            *(len(getattr(optimizers, name)) for name in steps),
            *(len(one._forward_pre_hooks) for one in net.modules()),
            *(len(one._forward_hooks) for one in net.modules()),
            *(len(p._post_accumulate_grad_hooks or ()) for p in net.parameters()),
        ]

    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    loss_of(net, batch(0)).backward()
    before = hooks()
    recorder = minitrain.record(net, optimizer, tmp_path, every=9)
    recorder.start()
    recorded = hooks()
    loop(net, optimizer, 5)
    # between recorded steps passes and steps are counted, no more
    assert hooks() == recorded
    recorder.stop()
    recorder.stop()
    assert hooks() == before


def test_a_recorded_model_can_be_copied_and_saved(tmp_path: Path) -> None:
    """As a moving average of it is made; the copy is not recorded, and what is saved
    needs no minitrain.
    """
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    optimizer = SGD(model.parameters(), lr=0.1)
    with minitrain.record(model, optimizer, tmp_path / "run"):
        averaged = torch.optim.swa_utils.AveragedModel(model)
        again = copy.deepcopy(model)
        torch.save(model, tmp_path / "saved")
        for one in (averaged, again, model):
            loss_of(one, batch(0)).backward()
        averaged.update_parameters(model)
        optimizer.step()
    (row,) = steps_of(tmp_path / "run")
    assert row["forwards"] == 1
    assert len(row["inputs"]) == 1
    torch.save(again, tmp_path / "copy")
    code = """import sys; sys.modules["minitrain"] = None
import torch
torch.load("saved", weights_only=False)(torch.ones(2, 6))"""
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True)


def test_passes_that_do_not_train_are_not_counted(tmp_path: Path) -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def evaluate(step: int) -> None:
        with torch.no_grad():
            model(batch(step))
        model.eval()
        model(batch(step))
        model.train()

    with minitrain.record(model, optimizer, tmp_path, every=2):
        evaluate(0)
        loop(model, optimizer, 4, after=evaluate)
    assert [row["forwards"] for row in steps_of(tmp_path)] == [1, 2, 3]


def refused(line: str, *args: Any, **options: Any) -> None:
    with pytest.raises(UserError, match=line) as caught:
        minitrain.record(*args, **options).start()
    assert "\n" not in str(caught.value)


def test_what_means_nothing_is_one_line(tmp_path: Path) -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    refused("model is a function: must be", loop, optimizer, tmp_path)
    refused("model LazyLinear is lazy: call it", nn.LazyLinear(2), None, tmp_path)
    refused("model ReLU has no parameters", nn.ReLU(), optimizer, tmp_path)
    refused("optimizer is a Tensor: must be", model, torch.ones(1), tmp_path)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    refused("optimizer is a ConstantLR: must", model, [scheduler], tmp_path)
    for every in (0, -1, 2.0, True):
        refused(f"every = {every}: must be", model, optimizer, tmp_path, every=every)
    refused("on_alarm = 'mail': must", model, None, tmp_path, on_alarm="mail")
    refused("timeout_s = 0: must be above", model, None, tmp_path, timeout_s=0)
    assert not list(tmp_path.iterdir())


def test_a_folder_has_one_recording_and_a_recorder_one_start(tmp_path: Path) -> None:
    model = Net()
    recorder = minitrain.record(model, None, tmp_path)
    recorder.stop()
    recorder.start()
    with pytest.raises(UserError, match="was started before"):
        recorder.start()
    recorder.stop()
    with pytest.raises(UserError, match="was started before"):
        recorder.start()
    refused("has a recording of rank 0", model, None, tmp_path)
    path_of_rank(tmp_path, 0).unlink()
    train_alone(tmp_path)


def test_a_twin_starts_one_unit_in_the_last_place_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Parameter(torch.tensor([1.0, 0.0, -2.0]))
            self.narrow = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
            self.whole = nn.Parameter(torch.ones(2).long(), requires_grad=False)

        def forward(self) -> torch.Tensor:
            return self.wide.sum() + self.narrow.sum()

    monkeypatch.setenv("MINITRAIN_TWIN", "1")
    model = Typed()
    with minitrain.record(model, SGD([model.wide], lr=0.1), tmp_path):
        assert model.wide.tolist() == [1, 0, -2]
        model().backward()
    up = [1 + 2.0**-23, 2.0**-149, -2 + 2.0**-23]
    assert model.wide.tolist() == up
    assert model.narrow.tolist() == [1 + 2.0**-7] * 2
    assert model.whole.tolist() == [1, 1]
    header = read_recording(tmp_path).ranks[0].header
    assert header["twin"] is True
    assert header["start"]["wide"] == digest(torch.tensor(up))
