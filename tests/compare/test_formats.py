"""Folders that people have: shards with an index, torch.distributed.checkpoint, what
Accelerate and Fabric leave; read whole or refused in one line, without running code.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import output_of
from one_line import refusal
from pickles import RunsCode
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from minitrain.comm.groups import distributed
from minitrain.compare.formats import METADATA, loaded
from minitrain.compare.state_diff import compare_folders, compare_states
from minitrain.compare.states import read_state
from minitrain.harness.launcher import launch

# of one process, which is what is wanted
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.0, -0.0])}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "plain.pt")
    return tmp_path / "plain.pt"


def sharded(folder: Path, kind: str = "safetensors") -> Path:
    """STATE as Hugging Face saves what is larger than a shard."""
    folder.mkdir(exist_ok=True, parents=True)
    where, save_shard = {}, save_file if kind == "safetensors" else torch.save
    for number, (name, tensor) in enumerate(STATE.items(), 1):
        where[name] = f"model-{number:05}-of-00002.{kind}"
        save_shard({name: tensor}, folder / where[name])
    index = {"metadata": {"total_size": 32}, "weight_map": where}
    (folder / f"model.{kind}.index.json").write_text(json.dumps(index))
    return folder


def distcp(folder: Path, state: dict[str, Any]) -> Path:
    """As torch.distributed.checkpoint saves it."""
    save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_with_an_index(tmp_path: Path, plain: Path, kind: str) -> None:
    folder = sharded(tmp_path / "sharded", kind)
    assert compare_states(read_state(folder), read_state(plain)).equal
    index = folder / f"model.{kind}.index.json"
    assert compare_states(read_state(index), read_state(plain)).equal


def test_shard_that_lacks_what_the_index_says(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "sharded")
    save_file({"other": torch.ones(1)}, folder / "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    assert refusal(read_state, folder) == f"{index}: no shard holds w"
    index.write_text('{"weight_map": 3}')
    line = f"{index}: not an index of shards (weight_map)"
    assert refusal(read_state, folder) == line
    for name in (".", "..", "../plain.pt", "gone.safetensors"):
        index.write_text(json.dumps({"weight_map": {"w": name}}))
        line = refusal(read_state, folder)
        assert line.startswith(f"{index}: ")
        assert line.endswith("is no shard file in its folder")


def test_distributed_checkpoint(tmp_path: Path, plain: Path) -> None:
    saved = {"model": STATE, "optimizer": {"lr": 0.1, "step": torch.tensor(3)}}
    folder = distcp(tmp_path / "dcp", saved)
    state = read_state(folder)
    assert {*state.tensors} == {"model.w", "model.b", "optimizer.step"}
    assert state.values == {"optimizer.lr": 0.1}
    found = compare_states(state, read_state(plain))
    assert (found.equal, found.num_tensors) == (True, 2)
    assert found.notes[-1] == "A is its entry 'model', without 2 others"
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


@pytest.mark.slow
def test_parts_of_ranks_are_put_together(parts: Path) -> None:
    whole = torch.arange(20.0).reshape(5, 4)
    assert torch.equal(loaded(read_state(parts).tensors["w"]), whole)
    # what one rank had is not the tensor
    assert "w is not plain" in refusal(read_state, parts / "rank-1.pt")


WHOLE = "not a whole checkpoint of torch.distributed.checkpoint"
UNREAD = "cannot read w of it: damaged, or it needs code to be read"


class Builds:
    """A pickle that would set attributes of a class of this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _StorageInfo, (), (None, {"relative_path": "../x"})


@pytest.mark.parametrize("content", [RunsCode(Path("ran")), Builds()])
def test_pickle_runs_nothing_and_changes_nothing_here(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {**vars(_StorageInfo)}
    (tmp_path / METADATA).write_bytes(pickle.dumps(content))
    assert refusal(read_state, tmp_path) == f"{tmp_path}: {WHOLE}"
    assert {**vars(_StorageInfo)} == before
    assert not Path("ran").exists()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "dcp"
    launch(partial(save_a_part, folder), 2, timeout_s=60)
    return folder


def same_twice(metadata: Any, w: Any) -> None:
    # as many numbers as the whole has, and the second half nowhere
    w.chunks[1], w.size = w.chunks[0], torch.Size((6, 4))


def elsewhere(metadata: Any, w: Any) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = f"../{info.relative_path}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        # beyond the end
        lambda metadata, w: setattr(w, "size", torch.Size((4, 5))),
        same_twice,
        lambda metadata, w: w.chunks.pop(),
        lambda metadata, w: setattr(w.properties, "dtype", torch.float64),
        elsewhere,
    ],
)
def test_pieces_that_are_not_what_the_metadata_says(
    parts: Path, tmp_path: Path, change: Callable[[Any, Any], None]
) -> None:
    folder = Path(shutil.copytree(parts, tmp_path / "dcp"))
    metadata = pickle.loads((folder / METADATA).read_bytes())
    change(metadata, metadata.state_dict_metadata["w"])
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    for file in folder.glob("*.distcp"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = refusal(lambda: loaded(read_state(folder).tensors["w"]))
    assert found == f"{folder}: {UNREAD}"


@pytest.mark.parametrize(
    ("damaged", "damage", "line"),
    [
        (METADATA, lambda whole: pickle.dumps({"a": 1}), WHOLE),
        ("__0_0.distcp", lambda whole: whole[: len(whole) // 2], UNREAD),
        # a pipe
        ("__0_0.distcp", None, UNREAD),
    ],
)
def test_damaged_checkpoint(
    tmp_path: Path, damaged: str, damage: Callable[[bytes], bytes] | None, line: str
) -> None:
    folder = distcp(tmp_path / "dcp", {"w": torch.ones(1000)})
    file = folder / damaged
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(content)) if damage else os.mkfifo(file)
    found = refusal(lambda: [*map(loaded, read_state(folder).tensors.values())])
    assert found == f"{folder}: {line}"


def of_accelerate(folder: Path, weight: float) -> Path:
    """As Accelerator.save_state leaves it, as far as it matters here."""
    folder.mkdir()
    save_file({"w": torch.tensor([weight])}, folder / "model.safetensors")
    torch.save({"state": {0: {"exp_avg": torch.ones(1)}}}, folder / "optimizer.bin")
    (folder / "random_states_0.pkl").write_bytes(pickle.dumps(RunsCode(folder / "x")))
    return folder


def test_folders_file_by_file(tmp_path: Path) -> None:
    a, b = (of_accelerate(tmp_path / name, 1.0) for name in "ab")
    (b / "random_states_0.pkl").write_bytes((a / "random_states_0.pkl").read_bytes())
    assert output_of("verify", a, b) == (
        0,
        "equal: 3 states and files\n"
        "model.safetensors: equal: 1 tensor, every bit\n"
        "optimizer.bin: equal: 1 tensor, every bit\n"
        "random_states_0.pkl: equal bytes, not read\n",
    )
    other = of_accelerate(tmp_path / "c", 2.0)
    (other / "scaler.pt").write_bytes(b"")
    assert output_of("verify", a, other) == (
        1,
        "different, of 3 states and files\n"
        "model.safetensors: different: 1 of 1 tensor, 1 element in all; "
        "first difference: w[0]\n"
        "optimizer.bin: equal: 1 tensor, every bit\n"
        "random_states_0.pkl: different bytes, not read\n"
        "only in B: scaler.pt\n",
    )


def test_what_lies_beside_a_state_is_compared_too(tmp_path: Path, plain: Path) -> None:
    """As of Hugging Face's Trainer: shards, and an optimizer beside them."""
    for name, moment in (("a", 1.0), ("b", 2.0)):
        sharded(tmp_path / name)
        torch.save(
            {"exp_avg": torch.tensor([moment])}, tmp_path / name / "optimizer.pt"
        )
    code, text = output_of("verify", tmp_path / "a", tmp_path / "b")
    assert code == 1
    assert "optimizer.pt: different: 1 of 1 tensor" in text
    # a file has nothing beside it: that is said
    code, text = output_of("verify", tmp_path / "a", plain)
    assert (code, text.splitlines()[-1]) == (0, "not compared: optimizer.pt")


def test_index_whose_shards_cannot_be_read_is_not_judged_by_itself(
    tmp_path: Path,
) -> None:
    for name in "ab":
        folder = sharded(tmp_path / name, "bin")
        sharded(folder)
        (folder / "model-00001-of-00002.bin").write_bytes(name.encode())
    line = refusal(compare_folders, tmp_path / "a", tmp_path / "b")
    assert "model-00001-of-00002.bin: not a whole state file" in line


def test_state_of_several_files_is_one(tmp_path: Path) -> None:
    for name in "xy":
        sharded(tmp_path / name / "model")
        (tmp_path / name / "notes.txt").write_text("equal")
    found = compare_folders(tmp_path / "x", tmp_path / "y")
    assert found.equal
    names = ["model/model.safetensors.index.json"]
    assert ([*found.states], found.files) == (names, {"notes.txt": True})
    # and has other names in other formats
    a, b = sharded(tmp_path / "a"), distcp(tmp_path / "b", STATE)
    found = compare_folders(a, b)
    assert (found.equal, [*found.states]) == (True, ["model.safetensors.index.json, ."])
    # also deeper in the folder
    distcp(tmp_path / "z" / "model", STATE)
    found = compare_folders(tmp_path / "x", tmp_path / "z")
    names = ["model/model.safetensors.index.json, model"]
    assert ([*found.states], found.only_in_a) == (names, ["notes.txt"])


def test_name_of_a_file_forges_no_verdict(tmp_path: Path, plain: Path) -> None:
    folder = sharded(tmp_path / "a")
    (folder / "x\nequal: 24 tensors, every bit").touch()
    last = output_of("verify", folder, plain)[1].splitlines()[-1]
    assert last.startswith("not compared: x\\nequal: 24")
