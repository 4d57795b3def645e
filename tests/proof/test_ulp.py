"""Units in the last place: the order of floats, and values outside it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitrain.proof.ulp import (
    CHUNK_ELEMENTS,
    Distance,
    Gap,
    distance,
    tensor_gap,
    ulp_distance,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MOST = torch.finfo(torch.float32).max
finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def ulp(a: float, b: float, dtype: torch.dtype = torch.float32) -> int:
    (apart,) = ulp_distance(
        torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)
    )
    return int(apart)


def one(
    value: float | list[float], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    return {"w": torch.tensor(value, dtype=dtype)}


@given(finite32)
def test_neighbors_are_one_apart(a: float) -> None:
    for towards in (math.inf, -math.inf):
        neighbor = torch.nextafter(torch.tensor(a), torch.tensor(towards)).item()
        assert ulp(a, neighbor) == 1


@pytest.mark.parametrize(
    ("dtype", "bits", "mantissa"),
    list(zip(DTYPES, (16, 16, 32, 64), (10, 7, 23, 52), strict=True)),
)
def test_distances_by_hand(dtype: torch.dtype, bits: int, mantissa: int) -> None:
    # between 1 and 2 the mantissa takes all its values
    assert ulp(1, 2, dtype) == 2**mantissa
    assert ulp(-2, -1, dtype) == 2**mantissa
    # both zeros have the same position
    assert ulp(-0.0, 0.0, dtype) == 0
    # the smallest number above zero and the one below
    smallest = float(np.ldexp(torch.finfo(dtype).tiny, -mantissa))
    assert ulp(-smallest, smallest, dtype) == 2
    assert ulp(-0.0, smallest, dtype) == ulp(-smallest, 0.0, dtype) == 1
    # 1 lies half the exponents above zero: exponent bits 0111...1
    exponent = bits - 1 - mantissa
    assert ulp(0, 1, dtype) == (2 ** (exponent - 1) - 1) * 2**mantissa
    # from one end to the other: every exponent but the one of infinity, both signs
    ends = (2**exponent - 1) * 2**mantissa
    assert ulp(-math.inf, math.inf, dtype) == 2 * ends


EQUAL = Distance(True, 0, 0.0, None)
UNLIKE = Distance(False, None, None, "w")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param({}, one(1.0), UNLIKE, id="missing here"),
        pytest.param(one(1.0), {}, UNLIKE, id="missing there"),
        pytest.param(one([1.0, 2.0]), one([1.0, math.nan]), UNLIKE, id="NaN there"),
        pytest.param(one([math.nan, 2.0]), one([1.0, 2.0]), UNLIKE, id="NaN here"),
        pytest.param(one([1.0, 2.0]), one([[1.0, 2.0]]), UNLIKE, id="shape"),
        pytest.param(one(1.0), one(1.0, torch.float64), UNLIKE, id="dtype"),
        ({}, {}, EQUAL),
        (one([1.0, 2.0]), one([1.0, 2.0]), EQUAL),
        (one([math.nan, 1.0]), one([math.nan, 1.0]), EQUAL),
        (one(0.0), one(-0.0), Distance(False, 0, 0.0, "w")),
        # above 8 the places are 2^-20 apart: 0.5 is 2^19 of them; 0.25 to 0.5 is 2^23
        (
            {"v": torch.ones(2), **one([1.0, 8.0]), "x": torch.tensor([0.25])},
            {"v": torch.ones(2), **one([1.0, 8.5]), "x": torch.tensor([0.5])},
            Distance(False, 2**23, 0.5, "w"),
        ),
        (one(MOST), one(math.inf), Distance(False, 1, None, "w")),
        # a causal mask may hold infinities; what differs is elsewhere
        (one([-math.inf, 1]), one([-math.inf, 1.5]), Distance(False, 2**22, 0.5, "w")),
    ],
)
def test_distance_by_hand(
    a: dict[str, Tensor], b: dict[str, Tensor], expected: Distance
) -> None:
    assert distance(a, b) == expected


def test_places_between_integers() -> None:
    for a, b, dtype in (
        (-(2**63), 2**63 - 1, torch.int64),
        (-128, 127, torch.int8),
        (0, 255, torch.uint8),
        (0, 1, torch.bool),
    ):
        apart = distance(one([0, a], dtype), one([0, b], dtype))
        assert (apart.max_ulp, apart.tensor) == (b - a, "w"), dtype


def test_other_types_and_a_tensor_that_requires_a_gradient() -> None:
    a, b = torch.tensor([1 + 2j, 3 + 4j]), torch.tensor([1 + 2j, 3 + 5j])
    # 4 to 5 is a quarter of the 2^23 places between 4 and 8
    assert distance({"w": a}, {"w": b}) == Distance(False, 2**21, 1.0, "w")
    assert distance({"w": a}, {"w": a.conj().conj()}).bytes_equal
    assert not distance({"w": a}, {"w": a.conj()}).bytes_equal
    # powers of two alone, so that 1 and 2 are neighbors
    a, b = (torch.tensor([x]).to(torch.float8_e8m0fnu) for x in (1.0, 2.0))
    assert distance({"w": a}, {"w": b}) == Distance(False, 1, 1.0, "w")
    weight = torch.ones(2, requires_grad=True)
    assert distance({"w": weight}, {"w": weight + 1}).max_abs_diff == 1


def test_gap_of_a_tensor_longer_than_a_piece() -> None:
    a = torch.zeros(3, CHUNK_ELEMENTS)
    b = a.clone()
    b[1, 5] = 2.0
    b[2, -1] = -1.0
    # 1 is 127 * 2^23 places from 0, and 2 is 2^23 further
    expected = Gap(2, CHUNK_ELEMENTS + 5, 128 * 2**23, 2.0)
    assert tensor_gap(a, b) == expected
    assert tensor_gap(b, a) == expected
    b[0, 0] = math.nan
    assert tensor_gap(a, b) == Gap(3, 0, None, None)
