"""State files of every kind, read whole or refused in one line that names the file; and
names that mean the same: wrappers' words, and a model inside a checkpoint.
"""

import argparse
import pickle
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from one_line import refusal
from pickles import RunsCode
from safetensors.torch import save_file

from minitrain.compare import states
from minitrain.compare.formats import loaded
from minitrain.compare.state_diff import compare_states
from minitrain.compare.states import State, align, read_state

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b.c": torch.tensor(3)}


def saved(folder: Path, content: Any, **options: Any) -> Path:
    path = folder / "state.pt"
    torch.save(content, path, **options)
    return path


@pytest.mark.parametrize("kind", ["zip", "stream before torch 1.6", "safetensors"])
def test_tensors_by_name(tmp_path: Path, kind: str) -> None:
    if kind == "safetensors":
        path = tmp_path / "state.safetensors"
        save_file(STATE, path)
    else:
        path = saved(tmp_path, STATE, _use_new_zipfile_serialization=kind == "zip")
    state = read_state(path)
    assert state.tensors.keys() == STATE.keys()
    tensors = {name: loaded(tensor) for name, tensor in state.tensors.items()}
    assert all(torch.equal(tensors[name], STATE[name]) for name in STATE)
    assert state.values == {}


def test_nested_entries_have_dotted_names(tmp_path: Path) -> None:
    model = OrderedDict(w=torch.ones(1))
    optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1}]}
    content = {"model": model, "optimizer": optimizer, "epoch": 7, "extra": {}}
    state = read_state(saved(tmp_path, content))
    assert list(state.tensors) == ["model.w", "optimizer.state.0.step"]
    assert state.values == {"optimizer.groups.0.lr": 0.1, "epoch": 7, "extra": {}}


def test_names_that_would_fall_together(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": {"w": torch.ones(1)}, "a.w": torch.zeros(1)})
    assert refusal(read_state, path) == f"{path}: two entries are named 'a.w'"


def test_tensors_that_share_storage(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    state = read_state(saved(tmp_path, {"whole": whole, "part": whole[1:3]}))
    assert state.tensors["part"].tolist() == [1.0, 2.0]


def refused(path: Path) -> str:
    line = refusal(read_state, path)
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize("how", ["torch.save", "pickle"])
def test_file_that_would_run_code(tmp_path: Path, how: str) -> None:
    trap = RunsCode(tmp_path / "ran")
    path = tmp_path / "state.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps({"w": trap}))
    else:
        torch.save({"w": trap}, path)
    # the stream of pickle's newer protocols is not even one that torch reads
    why = {"torch.save": "needs code to be read (posix.mkdir), so it is refused"}
    assert refused(path) == why.get(
        how, "not a whole state file: torch.load cannot read it"
    )
    assert not trap.path.exists()


def test_torn_file(tmp_path: Path) -> None:
    content = {f"w{i}": torch.randn(50, 50) for i in range(4)}
    for new in (True, False):
        path = saved(tmp_path, content, _use_new_zipfile_serialization=new)
        whole = path.read_bytes()
        for share in (0.1, 0.5, 0.9, 0.999):
            path.write_bytes(whole[: int(share * len(whole))])
            assert "not a whole state file" in refused(path)
    path = tmp_path / "state.safetensors"
    save_file(STATE, path)
    whole = path.read_bytes()
    for size in (0, 4, 20, 100):
        path.write_bytes(whole[:size])
        assert refused(path).startswith("not a whole .safetensors file: ")


def test_small_file_with_endless_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MOST_ENTRIES", 1000, raising=False)
    nested: list[Any] = [0]
    for _ in range(40):
        nested = [nested, nested]
    assert refused(saved(tmp_path, nested)) == "has more than 1,000 entries"


@pytest.mark.parametrize(
    "content",
    [b"", b"hello, world\n", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", b"\x80\x02."],
    ids=["empty", "text", "picture", "zip without end", "pickle without content"],
)
def test_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(content)
    why = "the file is empty" if not content else "not a whole state file"
    assert refused(path).startswith(why)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["sparse", "meta", "nested", "jagged"])
def test_tensors_that_are_not_plain(tmp_path: Path, kind: str) -> None:
    parts = [torch.ones(2), torch.ones(3)]
    tensor = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "meta": lambda: torch.empty(3, device="meta"),
        "nested": lambda: torch.nested.nested_tensor(parts),
        "jagged": lambda: torch.nested.nested_tensor(parts, layout=torch.jagged),
    }[kind]()
    path = saved(tmp_path, {"w": tensor})
    assert refused(path) == (
        "tensor w is not plain: sparse, quantized, nested, or without values (meta)"
    )


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_missing_file_is_the_operating_systems_error(
    tmp_path: Path, suffix: str
) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        read_state(tmp_path / f"state.{suffix}")
    assert Path(raised.value.filename).name == f"state.{suffix}"


def test_python_objects_are_inert(tmp_path: Path) -> None:
    """Tensors next to and inside them are compared; no code of their class runs."""
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for number, path in enumerate(files):
        args = argparse.Namespace(lr=0.1, mean=torch.ones(2))
        content = {"w": torch.full((2,), float(number)), "args": args}
        torch.save(content, path)
    a, b = map(read_state, files)
    assert a.objects == {"args": "argparse.Namespace"}
    assert sorted(a.tensors) == ["args.mean", "w"]
    found = compare_states(a, b)
    assert (found.equal, found.num_different_tensors) == (False, 1)
    assert found.objects == ["args (argparse.Namespace)"]
    assert compare_states(a, a).equal


class Inner(Enum):
    A = 1
    B = 2


@pytest.mark.parametrize("wrap", [lambda of: of, lambda of: {of}], ids=["bare", "set"])
def test_classes_are_compared_by_identity(
    tmp_path: Path, wrap: Callable[[object], object]
) -> None:
    """A class equals itself in two files; no other class, and not its name."""
    by_name = "torch.optim.adamw.AdamW"
    contents = [torch.optim.AdamW, torch.optim.AdamW, torch.optim.Adam, by_name]
    read = []
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.pt"
        torch.save({"w": torch.ones(2), "of": wrap(content)}, path)
        read.append(read_state(path))
    a, same, other, name = read
    assert compare_states(a, read_state(tmp_path / "0.pt")).equal
    assert compare_states(a, same).equal
    for b, shown in ((other, "<class 'torch.optim.adam.Adam'>"), (name, by_name)):
        found = compare_states(a, b)
        assert (found.equal, [*found.values]) == (False, ["of"])
        assert f"<class '{by_name}'>" in found.values["of"]
        assert shown in found.values["of"]


def test_objects_in_a_set_are_equal_if_their_content_is(tmp_path: Path) -> None:
    """Each file has stand-ins of its own."""
    contents = [{Inner.A}, {Inner.B}]
    read = []
    for number, content in enumerate([contents[0], *contents]):
        path = tmp_path / f"{number}.pt"
        torch.save({"w": torch.ones(2), "of": content}, path)
        read.append(read_state(path))
    assert compare_states(read[0], read[1]).equal
    assert not compare_states(read[0], read[2]).equal


def test_a_file_is_mapped_into_memory_and_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1 << 20)})
    state = read_state(path)
    assert state.tensors["w"].sum() == 1 << 20
    assert str(path) in Path("/proc/self/maps").read_text()


# names

MODEL = {"wte": 1.0, "blocks.0.w": 2.0, "blocks.1.w": 3.0}
WRAPPED = {
    name.replace("s.0", "s._checkpoint_wrapped_module.0"): number
    for name, number in MODEL.items()
}


def state(numbers: dict[str, float], **values: object) -> State:
    return State({n: torch.tensor([x]) for n, x in numbers.items()}, values)


def under(root: str, numbers: dict[str, float] = MODEL) -> dict[str, float]:
    return {f"{root}.{name}": number for name, number in numbers.items()}


OPTIMIZER = {"optimizer.state.0.exp_avg": 9.0}
PLAIN = "without the words of wrappers in names"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (MODEL, MODEL, []),
        (under("module"), MODEL, [PLAIN]),
        (under("_orig_mod.module"), WRAPPED, [PLAIN]),
        (
            under("model.module") | OPTIMIZER,
            MODEL,
            [PLAIN, "A is its entry 'model', without 1 others"],
        ),
        (
            under("state_dict") | OPTIMIZER,
            under("model"),
            [
                PLAIN,
                "A is its entry 'state_dict', without 1 others",
                "B is its entry 'model', without 0 others",
            ],
        ),
    ],
    ids=["as they are", "DDP", "torch.compile", "in a checkpoint", "in both"],
)
def test_same_model_by_other_names(
    a: dict[str, float], b: dict[str, float], said: list[str]
) -> None:
    found = compare_states(state(a), state(b))
    assert (found.equal, found.num_tensors, found.said) == (True, 3, said)
    # and one that is not equal is not made so
    other = compare_states(state(a), state({**b, [*b][1]: 7.0}))
    assert (other.equal, other.num_different_tensors) == (False, 1)


@pytest.mark.parametrize(
    ("a", "b", "num_tensors"),
    [
        # entries that are left on both sides
        (under("generator") | {"discriminator.x": 1.0}, under("G") | {"D.x": 2.0}, 3),
        # names that begin alike are no entry
        (
            under("model") | under("model2", {"x": 1.0}),
            under("net") | under("net2", {"x": 2.0}),
            3,
        ),
        # two entries fit
        (under("model") | under("ema"), MODEL, 0),
        # two names would become one
        ({"module.w": 1.0, "w": 2.0}, {"v": 1.0}, 0),
        ({"a": 1.0}, {"b": 1.0}, 0),
    ],
)
def test_names_that_cannot_be_aligned(
    a: dict[str, float], b: dict[str, float], num_tensors: int
) -> None:
    found = compare_states(state(a), state(b))
    assert (found.equal, found.num_different_tensors) == (False, 0)
    assert found.num_tensors == num_tensors
    assert found.only_in_a
    assert found.only_in_b
    if not num_tensors:
        assert [*align(state(a), state(b)).a.tensors] == [*a]
        assert found.said == []
