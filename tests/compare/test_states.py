"""State files of every kind, read whole or refused in one line that names the file; and
names that mean the same: wrappers' words, and a model inside a checkpoint.
"""

import argparse
import pickle
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from one_line import refusal
from pickles import RunsCode
from safetensors.torch import save_file

from minitrain.compare import states
from minitrain.compare.formats import _stand_in, loaded
from minitrain.compare.state_diff import compare_states
from minitrain.compare.states import State, read_state

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b.c": torch.tensor(3)}


def saved(folder: Path, content: Any, name: str = "state", **options: Any) -> Path:
    path = folder / f"{name}.pt"
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
    assert (state.tensors.keys(), state.values) == (STATE.keys(), {})
    for name, tensor in state.tensors.items():
        assert torch.equal(loaded(tensor), STATE[name])


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


def refused(path: Path) -> str:
    line = refusal(read_state, path)
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    "save",
    # the stream of pickle's newer protocols is not even one that torch reads
    [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))],
    ids=["torch.save", "pickle"],
)
def test_file_that_would_run_code(tmp_path: Path, save: Any) -> None:
    trap, path = RunsCode(tmp_path / "ran"), tmp_path / "state.pt"
    save({"w": trap}, path)
    assert refused(path) == "not a whole state file, or it needs code to be read"
    assert not trap.path.exists()


def test_torn_file(tmp_path: Path) -> None:
    content = {f"w{i}": torch.randn(50, 50) for i in range(4)}
    for new in (True, False):
        path = saved(tmp_path, content, _use_new_zipfile_serialization=new)
        whole = path.read_bytes()
        # also empty, and of another kind
        torn = [whole[: int(share * len(whole))] for share in (0, 0.1, 0.5, 0.999)]
        for part in (*torn, b"hello, world\n", b"\x80\x02."):
            path.write_bytes(part)
            assert refused(path).startswith("not a whole state file")
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
    nested = reduce(lambda inner, _: [inner, inner], range(40), [0])
    assert refused(saved(tmp_path, nested)) == "has more than 1,000 entries"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_plain(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor in (torch.eye(2).to_sparse(), torch.empty(3, device="meta"), nested):
        assert refused(saved(tmp_path, {"w": tensor})) == (
            "tensor w is not plain: sparse, quantized, nested, without values (meta), "
            "or one rank's part (DTensor)"
        )


def test_python_objects_are_inert(tmp_path: Path) -> None:
    """Tensors next to and inside them are compared; no code of their class runs."""
    args = argparse.Namespace(lr=0.1, mean=torch.ones(2))
    a, b = (
        read_state(saved(tmp_path, {"w": torch.full((2,), w), "args": args}, name))
        for name, w in (("a", 0.0), ("b", 1.0))
    )
    assert a.objects == {"args": "argparse.Namespace"}
    assert sorted(a.tensors) == ["args.mean", "w"]
    found = compare_states(a, b)
    assert (found.equal, found.num_different_tensors) == (False, 1)
    assert found.objects == ["args (argparse.Namespace)"]
    assert compare_states(a, a).equal


def read_each(folder: Path, *entries: object) -> list[State]:
    """The states of files that hold a tensor and one of the ``entries``."""
    contents = [{"w": torch.ones(2), "of": entry} for entry in entries]
    return [
        read_state(saved(folder, content, str(number)))
        for number, content in enumerate(contents)
    ]


def test_classes_are_compared_by_identity(tmp_path: Path) -> None:
    """A class equals itself in two files, also in a set; no other, and not its name."""
    name, classes = "torch.optim.adamw.AdamW", (torch.optim.AdamW, torch.optim.Adam)
    entries = [{classes[0]}, {classes[0]}, {classes[1]}, {name}]
    a, same, *others = read_each(tmp_path, *entries)
    assert compare_states(a, same).equal
    for b in others:
        found = compare_states(a, b)
        assert (found.equal, [*found.values]) == (False, ["of"])
        assert f"<class '{name}'>" in found.values["of"]


class Moments(NamedTuple):
    mean: torch.Tensor


HOLD: dict[str, Callable[[torch.Tensor], object]] = {
    "a named tuple": Moments,
    "an array": lambda tensor: tensor.numpy(),
    "strings of NumPy": lambda tensor: np.array([str(one) for one in tensor.tolist()]),
    "a random state": lambda tensor: np.random.default_rng(int(tensor[0])),
    "an array of tensors": lambda tensor: np.array([tensor, None], dtype=object),
    "a defaultdict": lambda tensor: defaultdict(list, a=[tensor]),
    "a deque": lambda tensor: deque([tensor], 3),
}


@pytest.mark.parametrize("hold", HOLD.values(), ids=HOLD)
def test_data_in_objects_is_compared(
    tmp_path: Path, hold: Callable[[torch.Tensor], object]
) -> None:
    of = (hold(torch.full((200,), x)) for x in (0.0, 0.0, 9.0))
    a, same, other = read_each(tmp_path, *of)
    assert compare_states(a, same).equal
    found = compare_states(a, other)
    assert not found.equal
    assert all(len(line) < 99 for line in found.values.values())


def test_arrays_of_two_versions_of_numpy_are_of_one_type() -> None:
    old, new = (_stand_in(f"numpy.{core}.scalar") for core in ("core", "_core"))
    assert new is old


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (np.arange(4.0).reshape(2, 2), np.arange(4.0).reshape(2, 2), True),
        (np.arange(4.0).reshape(2, 2), np.arange(4.0).reshape(2, 2).T, False),
        (np.ones(2, "f4"), np.ones(2, "i4"), False),
        (np.zeros((0, 3)), np.zeros((0, 4)), False),
        (np.float64(0), np.float64(-0.0), False),
        (np.float64(1), np.float32(1), False),
        (np.array([np.nan]), np.array([np.nan]), True),
        (np.array(["ab"]), np.array(["a", "b"]), False),
        (np.random.RandomState(1), np.random.RandomState(2), False),
    ],
)
def test_arrays_by_type_shape_and_bytes(
    tmp_path: Path, a: object, b: object, equal: bool
) -> None:
    for of in (a, b), (argparse.Namespace(x=a), argparse.Namespace(x=b)):
        assert compare_states(*read_each(tmp_path, *of)).equal is equal


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_part_of_a_model_is_not_the_whole(tmp_path: Path) -> None:
    """Another entry than the model's is no difference, but a rest of the model is."""
    part = {"w": torch.ones(2), "b": torch.zeros(2)}
    whole = {f"enc.{name}": tensor for name, tensor in part.items()}
    whole |= {"head.w": torch.ones(1)}
    optimizer = {"optimizer": {"m": torch.ones(1)}}
    saves = [part, whole, {"model": whole, **optimizer}, {"enc": part, **optimizer}]
    # tied to another tensor, as in GPT-2
    tied = {"enc.w": part["w"], "enc.b": part["b"], "head.w": part["w"]}
    of, *others = (
        read_state(saved(tmp_path, one, str(n))) for n, one in enumerate([*saves, tied])
    )
    folder = tmp_path / "distributed"
    dcp.save({"model": whole, **optimizer}, checkpoint_id=folder, no_dist=True)
    others.append(read_state(folder))
    rest = [compare_states(other, of).only_in_a for other in others]
    assert rest == [["head.w"], ["model.head.w"], [], [], ["model.head.w"]]
    equal = [compare_states(of, other).equal for other in others]
    assert equal == [not names for names in rest]


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
    nested = {
        name[: dot.start()] for name in numbers for dot in re.finditer(r"\.", name)
    }
    tensors = {name: torch.tensor([number]) for name, number in numbers.items()}
    return State(tensors, values, nested=nested)


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
    assert (found.equal, found.num_tensors, found.notes) == (True, 3, said)
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
        assert (found.only_in_a, found.notes) == ([*a], [])
