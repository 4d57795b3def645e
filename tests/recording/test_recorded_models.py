"""Wrappers of the model, made before or after the start, do not hide it."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from recorded_loops import Net, batch, loop, loss_of, plain, record_loop, steps_of
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import minitrain
from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.core.errors import UserError
from minitrain.recording.clock import path_of_times
from minitrain.recording.fingerprint import sketch
from minitrain.recording.format import read_recording


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


NAMES = [name for name, _ in Net().named_parameters()]


@pytest.mark.parametrize("given", ["inside", "wrapper", "later", "in two"])
def test_a_wrapper_is_seen_whenever_it_was_made(tmp_path: Path, given: str) -> None:
    inner = Net()
    optimizer = SGD(inner.parameters(), lr=0.1)
    outer: nn.Module = inner if given == "later" else Wrapped(inner)
    outer = Wrapped(outer) if given == "in two" else outer
    model = inner if given == "inside" else outer
    with minitrain.record(model, optimizer, tmp_path):
        outer = Wrapped(outer) if given == "later" else outer
        loop(outer, optimizer, 2)
    rows = steps_of(tmp_path)
    assert [(r["wrapper"], r["wrapper_id"]) for r in rows] == [("Wrapped", 1)] * 2
    assert list(rows[0]["parameters"]) == NAMES


def test_names_are_those_of_the_user_if_parts_are_compiled(tmp_path: Path) -> None:
    inner = Net()
    # no wrapper where it is not all
    inner.module = nn.Linear(1, 1)
    inner.first = torch.compile(inner.first, backend="eager")
    model = torch.compile(inner, backend="eager")
    rows = record_loop(tmp_path, model, num_steps=5, every=2)
    assert list(rows[0]["parameters"]) == [*NAMES, "module.weight", "module.bias"]
    assert [row["forwards"] for row in rows] == [1, 2, 3, 5]
    assert all(list(row["own"]) == NAMES and row["wrapper"] == "" for row in rows)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.inside, self.use_reentrant = Net(dropout=0.0), use_reentrant

    def forward(self, x: Tensor) -> Any:
        x.requires_grad_()
        return checkpoint(self.inside, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_pass_that_runs_again_for_checkpointing_counts_once(
    tmp_path: Path, use_reentrant: bool, is_whole: bool
) -> None:
    model = Checkpointed(use_reentrant)
    optimizer = SGD(model.parameters(), lr=0.1)
    calls = []
    model.inside.register_forward_pre_hook(lambda *_: calls.append(1))
    recorded = model.inside if is_whole else model
    with minitrain.record(recorded, optimizer, tmp_path):
        loop(model, optimizer, 3)
    assert len(calls) == 6
    rows = steps_of(tmp_path)
    assert [row["forwards"] for row in rows] == [1, 2, 3]
    assert [len(row["inputs"]) for row in rows] == [1, 1, 1]
    # it is no evaluation, which would exclude the step from the times
    assert pd.read_csv(path_of_times(tmp_path, 0), comment="#")["evals"].sum() == 0


def test_inputs_of_any_form_have_a_digest_a_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, *args: Any, **options: Any) -> Tensor:
            return self.weight * 1

    model = Takes()
    optimizer = SGD(model.parameters(), lr=0.1)
    mask, scale = torch.ones(4, 4), torch.ones(())
    x, y = batch(0, size=3), torch.arange(3)
    passes: list[Any] = [
        ((x,), {}),
        ((), {"x": x, "labels": y, "mask": mask, "scale": scale}),
        (({"x": [x], "how": "text"},), {}),
        (("text",), {"scale": scale}),
        ((torch.empty(3, device="meta"),), {}),
    ]
    with minitrain.record(model, optimizer, tmp_path, on_alarm="raise"):
        for args, options in passes:
            model(*args, **options).backward()
        optimizer.step()
    (row,) = steps_of(tmp_path)
    inputs = row["inputs"]
    assert [len(one) for one in inputs] == [3, 3, 3, 0, 0]
    assert inputs[0] == inputs[2] != inputs[1]
    # what cannot be read is noted, and ends nothing
    (note,) = read_recording(tmp_path).ranks[0].alarms
    assert (note["kind"], note["rule"], note["step"]) == ("note", "inputs", 0)
    assert f"samples are not recorded: {row['unread']}" in note["line"]
    assert note["line"] in capsys.readouterr().err


def wrapped_late(folder: Path) -> list[Any]:
    with distributed() as (rank, _):
        torch.manual_seed(rank)
        model: nn.Module = Net()
        optimizer = AdamW(model.parameters(), lr=1e-2)
        with minitrain.record(model, optimizer, folder):
            loop(wrap_for_ddp(model), optimizer, 2, rank=rank, micro=2)
        return [[r["wrapper_id"], r["syncs"]] for r in steps_of(folder, rank)]


def test_ddp_is_seen_though_it_comes_after_the_start(tmp_path: Path) -> None:
    seen = minitrain.launch(wrapped_late, 2, tmp_path)
    assert seen == [[[1, [False, True]]] * 2] * 2
    headers = [one.header for one in read_recording(tmp_path).ranks.values()]
    # the first line waits for the first pass: rank 0's weights are everywhere
    assert headers[0]["start"] == headers[1]["start"]


def accumulated(folder: Path, passes: list[bool]) -> tuple[float, float]:
    """How far sketches of the gradient before a reduction, and the sums of those of
    each pass, are from those of the gradients that this rank computed itself.
    """
    with distributed() as (rank, _):
        model, own = wrap_for_ddp(plain()), plain()
        optimizer = SGD(model.parameters(), lr=0.1)
        with minitrain.record(model, optimizer, folder):
            for number, syncs in enumerate(passes):
                with nullcontext() if syncs else model.no_sync():
                    loss_of(model, batch(0, rank, number)).backward()
                loss_of(own, batch(0, rank, number)).backward()
            optimizer.step()
    row = steps_of(folder, rank)[0]
    found = row["own"]
    known = {name: sketch(p.grad) for name, p in own.named_parameters()}
    assert found.keys() == known.keys()
    shares = row.get("passes", {name: [found[name]] for name in found})
    sums = {n: [sum(bins) for bins in zip(*shares[n], strict=True)] for n in shares}
    own_gap, sum_gap = (
        max(abs(x - y) for n in known for x, y in zip(known[n], of[n], strict=True))
        for of in (found, sums)
    )
    return own_gap, sum_gap


@pytest.mark.parametrize(
    "passes", [[True], [False, False, True], [True, True], [False, False]]
)
def test_own_gradients_are_sketched_where_ranks_come_together(
    tmp_path: Path, passes: list[bool]
) -> None:
    for gap, of_sums in minitrain.launch(accumulated, 2, tmp_path, passes):
        # of two that synchronize the second has the mean of the first in it
        assert gap < 1e-5 or passes == [True, True]
        assert of_sums < 1e-5


def three_steps(folder: Path, sharded: str) -> None:
    """DDP, or a part of each parameter on each rank, from the start or ``late``."""
    from torch.distributed.fsdp import fully_shard

    with distributed() as (rank, _):
        model = plain() if sharded else wrap_for_ddp(plain())
        if sharded == "early":
            fully_shard(model)
        with minitrain.record(model, None, folder):
            if sharded == "late":
                fully_shard(model)
            optimizer = AdamW(model.parameters(), lr=1e-2)
            for step in range(3):
                loss_of(model, batch(step, rank)).backward()
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.slow
def test_parts_of_parameters_are_put_together(tmp_path: Path) -> None:
    """What fully_shard computes is what DDP does, to the last bits."""
    minitrain.launch(three_steps, 2, tmp_path / "parts", "early")
    minitrain.launch(three_steps, 2, tmp_path / "whole", "")
    for rank in (0, 1):
        both = [steps_of(tmp_path / kind, rank) for kind in ("parts", "whole")]
        for part, whole in zip(*both, strict=True):
            assert part["own"] == {}
            assert part["parameters"].keys() == whole["parameters"].keys()
            for name in ("gradients", "parameters"):
                for tensor, known in whole[name].items():
                    norm = pytest.approx(known["norm"], rel=1e-4, abs=1e-6)
                    assert part[name][tensor]["norm"] == norm
    alarms = [one.alarms for one in read_recording(tmp_path / "parts").ranks.values()]
    assert alarms == [[], []]


@pytest.mark.slow
def test_sharding_after_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fully_shard\(model\) was called after"):
        minitrain.launch(three_steps, 2, tmp_path, "late")


def test_flattened_parameters_are_refused(tmp_path: Path) -> None:
    def flattened() -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        with distributed():
            device = torch.device("cpu")
            model = FullyShardedDataParallel(Net(), device_id=device)
            record_loop(tmp_path, model, num_steps=1)

    with pytest.raises(UserError, match="use fully_shard"):
        minitrain.launch(flattened, 2)
