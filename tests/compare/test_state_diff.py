"""Two states compared: every kind of difference is found, and named."""

import json
import math
import struct
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitrain.compare.state_diff import Element, compare_states
from minitrain.compare.states import State


def state(**tensors: Tensor) -> State:
    return State(tensors, {})


def pair(a: Any, b: Any, dtype: torch.dtype = torch.float32) -> tuple[State, State]:
    return state(w=torch.tensor(a, dtype=dtype)), state(w=torch.tensor(b, dtype=dtype))


# IEEE 754: 3 is 0x40400000, 5 is 0x40a00000
FIRST = Element("w", (1, 0), "3", "5", "0x40400000", "0x40a00000")
NAN = math.nan
FOUND: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "equal": (
        *([[1.0, 2.0]], [[1.0, 2.0]]),
        {"equal": True, "num_tensors": 1, "max_ulp": 0, "max_abs_diff": 0.0},
    ),
    "first": (
        *([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [5.0, 8.0]]),
        {"equal": False, "first": FIRST, "num_different_elements": 2},
    ),
    "without dimensions": (1.0, 2.0, {"num_different_tensors": 1, "max_abs_diff": 1.0}),
    "sign of zero": ([0.0], [-0.0], {"equal": False, "max_ulp": 0}),
    "NaN": ([1.0, NAN], [1.0, 2.0], {"without_distance": ["w"], "max_ulp": None}),
    "NaN in both": (
        *([1.0, NAN, NAN], [1.0, NAN, NAN]),
        {"equal": True, "num_elements": 3},
    ),
    "empty": ([], [], {"equal": True}),
}


@pytest.mark.parametrize("name", FOUND)
def test_pairs(name: str) -> None:
    a, b, wanted = FOUND[name]
    found = compare_states(*pair(a, b))
    assert {key: getattr(found, key) for key in wanted} == wanted


def test_largest_distance_need_not_be_in_the_first_tensor() -> None:
    a = state(u=torch.tensor([NAN]), v=torch.zeros(2), w=torch.zeros(2))
    b = state(u=torch.ones(1), v=torch.tensor([0.0, 1.0]), w=torch.tensor([2.0, 0.0]))
    found = compare_states(a, b)
    assert (found.first.tensor, found.without_distance) == ("u", ["u"])
    assert (found.max_abs_diff, found.max_abs_diff_tensor) == (2.0, "w")


@given(st.floats(width=32), st.floats(width=32))
def test_first_element_as_shown(x: float, y: float) -> None:
    """Hex of the bits, and decimals that distinguish any two numbers."""
    found = compare_states(*pair([x], [y]))
    bits = [struct.pack(">f", value) for value in (x, y)]
    assert found.equal == (bits[0] == bits[1])
    if first := found.first:
        assert [first.a_hex, first.b_hex] == [f"0x{word.hex()}" for word in bits]
        if not (math.isnan(x) or math.isnan(y)):
            shown = [struct.pack(">f", float(value)) for value in (first.a, first.b)]
            assert shown == bits


@pytest.mark.parametrize(
    ("dtype", "a_hex", "b_hex"),
    [
        (torch.float64, "0x3ff0000000000000", "0x4000000000000000"),
        (torch.float16, "0x3c00", "0x4000"),
        (torch.bfloat16, "0x3f80", "0x4000"),
        (torch.float8_e4m3fn, "0x38", "0x40"),
        (torch.int8, "0x01", "0x02"),
        (torch.int64, "0x0000000000000001", "0x0000000000000002"),
        (torch.complex64, "0x3f800000 0x00000000", "0x40000000 0x00000000"),
    ],
    ids=str,
)
def test_every_type(dtype: torch.dtype, a_hex: str, b_hex: str) -> None:
    a, b = (state(w=torch.tensor([0.0, x, 0.0]).to(dtype)) for x in (1, 2))
    found = compare_states(a, b)
    assert (found.first.index, found.first.a_hex) == ((1,), a_hex)
    assert found.first.b_hex == b_hex
    assert found.max_abs_diff == 1
    json.dumps(asdict(found), allow_nan=False)


def test_tensors_on_one_side() -> None:
    v, w, x = torch.ones(3, 1)
    found = compare_states(state(v=v, w=w), state(w=w, x=x))
    assert (found.equal, found.only_in_a, found.only_in_b) == (False, ["v"], ["x"])


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        (torch.ones(2), torch.ones(2, 1), "float32 (2,) against float32 (2, 1)"),
        (torch.ones(2), torch.ones(2).double(), "float32 (2,) against float64 (2,)"),
        (torch.zeros(0, 2), torch.zeros(2, 0), "float32 (0, 2) against float32 (2, 0)"),
        (torch.tensor(3.0), 3.0, "float32 () against the value 3.0"),
    ],
    ids=["shape", "dtype", "empty", "value"],
)
def test_other_dtype_shape_or_kind(a: Tensor, b: Tensor | float, line: str) -> None:
    other = state(w=b) if isinstance(b, Tensor) else State({}, {"w": b})
    found = compare_states(state(w=a), other)
    assert (found.equal, found.unlike) == (False, {"w": line})
    assert found.num_tensors == 0


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (math.nan, math.nan, True),
        (0.0, -0.0, False),
        (0.1, 0.1, True),
        (1, 1.0, False),
        (True, 1, False),
        ("adamw", "adamw", True),
    ],
)
def test_values_that_are_no_tensors_by_their_bits(a: Any, b: Any, equal: bool) -> None:
    found = compare_states(State({}, {"lr": a}), State({}, {"lr": b}))
    assert (found.equal, found.num_values) == (equal, 1)
    assert found.values == ({} if equal else {"lr": f"{a!r} against {b!r}"})


def test_tied_weights_that_one_format_keeps_once() -> None:
    tied = torch.ones(3)
    a, b = state(wte=tied, head=tied), state(wte=tied.clone())
    found = compare_states(a, b)
    assert (found.equal, found.aliases, found.only_in_a) == (True, {"head": "wte"}, [])
    # equal numbers elsewhere in memory are another tensor
    untied = compare_states(state(wte=tied, head=tied.clone()), b)
    assert (untied.equal, untied.only_in_a) == (False, ["head"])
