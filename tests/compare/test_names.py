"""Names that mean the same: wrappers' words, and a model inside a checkpoint."""

import pytest
import torch

from minitrain.compare.state_diff import compare_states
from minitrain.compare.states import State, align

MODEL = {"wte": 1.0, "blocks.0.w": 2.0, "blocks.1.w": 3.0}


def state(numbers: dict[str, float], **values: object) -> State:
    return State({n: torch.tensor([x]) for n, x in numbers.items()}, values)


def under(root: str, numbers: dict[str, float] = MODEL) -> dict[str, float]:
    return {f"{root}.{name}": number for name, number in numbers.items()}


OPTIMIZER = {"optimizer.state.0.exp_avg": 9.0}


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (MODEL, MODEL, []),
        (under("module"), MODEL, ["without the words of wrappers in names"]),
        (
            under("_orig_mod.module"),
            {
                "wte": 1.0,
                "blocks._checkpoint_wrapped_module.0.w": 2.0,
                "blocks.1.w": 3.0,
            },
            ["without the words of wrappers in names"],
        ),
        (
            under("model.module") | OPTIMIZER,
            MODEL,
            [
                "without the words of wrappers in names",
                "A is its entry 'model', without 1 others",
            ],
        ),
        (
            under("state_dict") | OPTIMIZER,
            under("model"),
            [
                "without the words of wrappers in names",
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


def test_entries_that_are_left_on_both_sides_are_differences() -> None:
    a = state(under("generator") | {"discriminator.x": 1.0})
    b = state(under("G") | {"D.x": 2.0})
    found = compare_states(a, b)
    assert (found.equal, found.num_tensors, found.num_different_tensors) == (
        False,
        3,
        0,
    )
    assert (found.only_in_a, found.only_in_b) == (["discriminator.x"], ["D.x"])


def test_names_that_begin_alike_are_no_entry() -> None:
    a = state(under("model") | under("model2", {"x": 1.0}))
    b = state(under("net") | under("net2", {"x": 2.0}))
    assert not compare_states(a, b).equal


def test_two_entries_that_fit_are_left_to_the_user() -> None:
    both = state(under("model") | under("ema"))
    aligned = align(both, state(MODEL))
    assert aligned.said == []
    found = compare_states(both, state(MODEL))
    assert (found.equal, found.num_tensors) == (False, 0)


def test_names_that_would_become_one_stay() -> None:
    a = state({"module.w": 1.0, "w": 2.0})
    assert not compare_states(a, state({"v": 1.0})).equal
    assert [*align(a, state({"v": 1.0})).a.tensors] == ["module.w", "w"]


def test_nothing_in_common() -> None:
    found = compare_states(state({"a": 1.0}), state({"b": 1.0}))
    assert (found.equal, found.only_in_a, found.only_in_b) == (False, ["a"], ["b"])
