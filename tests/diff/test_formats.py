"""Folders that people have: shards with an index, torch.distributed.checkpoint, what
Accelerate and Fabric leave; read whole or refused in one line, without running code.
"""

import json
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from one_line import refusal
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from minitrain.cli.main import run
from minitrain.diff.distcp import METADATA
from minitrain.diff.folders import compare_folders
from minitrain.diff.state_diff import compare_states
from minitrain.diff.states import read_state
from minitrain.distributed.groups import distributed
from minitrain.distributed.launcher import launch

# of one process, which is what is wanted
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.0, -0.0])}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "plain.pt")
    return tmp_path / "plain.pt"


def sharded(folder: Path, state: dict[str, Any], kind: str = "safetensors") -> Path:
    """As Hugging Face saves what is larger than a shard."""
    folder.mkdir(exist_ok=True)
    where = {}
    for number, (name, tensor) in enumerate(state.items(), 1):
        file = f"model-{number:05}-of-{len(state):05}.{kind}"
        if kind == "safetensors":
            save_file({name: tensor}, folder / file)
        else:
            torch.save({name: tensor}, folder / file)
        where[name] = file
    index = {"metadata": {"total_size": 32}, "weight_map": where}
    (folder / f"model.{kind}.index.json").write_text(json.dumps(index))
    return folder


def distcp(folder: Path, state: dict[str, Any]) -> Path:
    """As torch.distributed.checkpoint saves it."""
    save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_with_an_index(tmp_path: Path, plain: Path, kind: str) -> None:
    folder = sharded(tmp_path / "sharded", STATE, kind)
    assert compare_states(read_state(folder), read_state(plain)).equal
    index = folder / f"model.{kind}.index.json"
    assert compare_states(read_state(index), read_state(plain)).equal


def test_shard_that_lacks_what_the_index_says(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "sharded", STATE)
    save_file({"other": torch.ones(1)}, folder / "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    assert refusal(read_state, folder) == f"{index}: no shard holds w"
    index.write_text('{"weight_map": 3}')
    line = f"{index}: not an index of shards (weight_map)"
    assert refusal(read_state, folder) == line


def test_distributed_checkpoint(tmp_path: Path, plain: Path) -> None:
    saved = {"model": STATE, "optimizer": {"lr": 0.1, "step": torch.tensor(3)}}
    folder = distcp(tmp_path / "dcp", saved)
    state = read_state(folder)
    assert {*state.tensors} == {"model.w", "model.b", "optimizer.step"}
    assert state.values == {"optimizer.lr": 0.1}
    found = compare_states(state, read_state(plain))
    assert (found.equal, found.num_tensors) == (True, 2)
    assert found.said[-1] == "A is its entry 'model', without 2 others"
    other = {**STATE, "w": STATE["w"] + 1}
    again = distcp(tmp_path / "other", {"model": other})
    assert not compare_states(read_state(again), read_state(plain)).equal


def save_a_part(folder: Path) -> None:
    """One rank of two, as under FSDP: each writes its rows, three and two."""
    with distributed():
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(20.0).reshape(5, 4)
        part = distribute_tensor(whole, mesh, [Shard(0)])
        save({"w": part}, checkpoint_id=folder)
        torch.save({"w": part}, folder / f"rank-{dist.get_rank()}.pt")


def test_parts_of_ranks_are_put_together(tmp_path: Path) -> None:
    launch(partial(save_a_part, tmp_path), 2, timeout_s=60)
    whole = torch.arange(20.0).reshape(5, 4)
    assert torch.equal(read_state(tmp_path).tensors["w"], whole)
    # without the others there is what this rank had
    part = read_state(tmp_path / "rank-1.pt").tensors["w"]
    assert torch.equal(part, whole[3:])


class RunsCode:
    """A pickle that would leave a file behind when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_checkpoint_that_would_run_code(tmp_path: Path) -> None:
    folder, trace = tmp_path / "dcp", tmp_path / "ran"
    folder.mkdir()
    (folder / METADATA).write_bytes(pickle.dumps(RunsCode(trace)))
    line = refusal(read_state, folder)
    assert line == (
        f"{folder / METADATA}: needs code to be read (posix.mkdir), so it is refused"
    )
    assert not trace.exists()


class Attribute:
    """A pickle that asks for an attribute, as older ones do for a member of an Enum."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.of, self.name)


def test_attributes_are_members_of_enumerations_alone(tmp_path: Path) -> None:
    member = Attribute(_MEM_FORMAT_ENCODING, "TORCH_PRESERVE_FORMAT")
    (tmp_path / METADATA).write_bytes(pickle.dumps(member))
    whole = f"{tmp_path}: not a whole checkpoint of torch.distributed.checkpoint"
    assert refusal(read_state, tmp_path) == whole
    (tmp_path / METADATA).write_bytes(pickle.dumps(Attribute(torch.Size, "mro")))
    assert "needs code to be read (getattr mro)" in refusal(read_state, tmp_path)


@pytest.mark.parametrize("damage", ["metadata", "no metadata", "data", "torn"])
def test_damaged_checkpoint(tmp_path: Path, damage: str) -> None:
    folder = distcp(tmp_path / "dcp", {"w": torch.ones(1000)})
    (data,) = folder.glob("*.distcp")
    content = data.read_bytes()
    if damage == "metadata":
        (folder / METADATA).write_bytes(b"nothing")
    elif damage == "no metadata":
        (folder / METADATA).write_bytes(pickle.dumps({"a": 1}))
    elif damage == "data":
        data.write_bytes(b"\0" * len(content))
    else:
        data.write_bytes(content[: len(content) // 2])
    line = refusal(lambda: [*read_state(folder).tensors.values()])
    assert line.startswith(f"{folder}: ")
    whole = f"{folder}: not a whole checkpoint of torch.distributed.checkpoint"
    unread = f"{folder}: cannot read w of it: damaged, or it needs code to be read"
    assert line in (whole, unread)


def of_accelerate(folder: Path, weight: float) -> Path:
    """As Accelerator.save_state leaves it, as far as it matters here."""
    folder.mkdir()
    save_file({"w": torch.tensor([weight])}, folder / "model.safetensors")
    torch.save({"state": {0: {"exp_avg": torch.ones(1)}}}, folder / "optimizer.bin")
    (folder / "random_states_0.pkl").write_bytes(pickle.dumps(RunsCode(folder / "x")))
    return folder


def test_folders_file_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (of_accelerate(tmp_path / name, 1.0) for name in "ab")
    (b / "random_states_0.pkl").write_bytes((a / "random_states_0.pkl").read_bytes())
    assert run(["verify", str(a), str(b)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "equal: 3 states and files",
        "model.safetensors: equal: 1 tensor, every bit",
        "optimizer.bin: equal: 1 tensor, every bit",
        "random_states_0.pkl: equal bytes, not read",
    ]
    other = of_accelerate(tmp_path / "c", 2.0)
    (other / "scaler.pt").write_bytes(b"")
    assert run(["verify", str(a), str(other)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "different, of 3 states and files",
        "model.safetensors: different: 1 of 1 tensor, 1 element in all; "
        "first difference: w[0]",
        "optimizer.bin: equal: 1 tensor, every bit",
        "random_states_0.pkl: different bytes, not read",
        "only in B: scaler.pt",
    ]


def test_shards_in_a_folder_are_one_state(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        sharded(tmp_path / name / "model", STATE)
        (tmp_path / name / "notes.txt").write_text("equal")
    found = compare_folders(tmp_path / "a", tmp_path / "b")
    assert found.equal
    assert ([*found.states], found.files) == (["model"], {"notes.txt": True})


def test_folder_against_a_file(tmp_path: Path, plain: Path) -> None:
    folder = distcp(tmp_path / "dcp", STATE)
    assert run(["verify", str(folder), str(plain)]) == 0
