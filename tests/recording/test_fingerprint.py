"""Digest and sketch of a tensor: what they see, and what they add up to."""

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from minitrain.recording.fingerprint import BINS, BLOCK, digest, fingerprint, sketch

SHAPES = [(), (1,), (0,), (7,), (64, 3), (BLOCK,), (3, BLOCK + 5)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def norm_of(sketched: list[float]) -> float:
    return math.sqrt(sum(x * x for x in sketched))


# of 0 and of 1024 bytes that count from 0 to 250 again and again: the test vectors of
# github.com/BLAKE3-team/BLAKE3
OF_NOTHING = "af1349b9f5f9a1a6a0404dea36dcc949"
OF_1024 = "42214739f095a406f3fc83deb889744a"


def test_digest_is_the_start_of_blake3_of_the_bytes() -> None:
    assert digest(torch.zeros(0)) == OF_NOTHING
    counted = torch.arange(1024) % 251
    assert digest(counted.to(torch.uint8)) == OF_1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_digest_is_of_the_bytes_in_row_major_order(dtype: torch.dtype) -> None:
    tensor = drawn(5, 3).to(dtype)
    whole = digest(tensor.view(torch.uint8))
    assert digest(tensor) == digest(tensor.t().contiguous().t()) == whole
    assert digest(tensor[:, 1:]) == digest(tensor[:, 1:].contiguous()) != whole
    assert digest(tensor[0, 0]) == digest(tensor.reshape(-1)[:1])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sketch_is_eight_finite_numbers_and_the_norm_exact(shape: tuple) -> None:
    tensor = drawn(*shape)
    known = fingerprint(tensor)
    assert len(known["sketch"]) == BINS
    assert known["sketch"] == sketch(tensor)
    assert known["hash"] == digest(tensor)
    assert known["norm"] == pytest.approx(float(tensor.double().norm()), rel=1e-12)


def test_a_sketch_is_the_same_in_every_version() -> None:
    """Worked out in plain Python, so that recordings of years ago can be read on."""

    def stream(name: str, count: int) -> bytes:
        return hashlib.shake_128(f"minitrain sketch 1: {name}".encode()).digest(count)

    def sign(name: str, at: int, count: int) -> int:
        byte = stream(name, count // 8)[at // 8]
        return 1 if byte >> (7 - at % 8) & 1 else -1

    expected = [0] * 8
    tensor = torch.zeros(3 * BLOCK, dtype=torch.int64)
    for i in range(0, 3 * BLOCK, 997):
        tensor[i] = i + 1
        block, place = divmod(i, BLOCK)
        into = (stream("rows", BLOCK // 64)[place // 64] + place) % 8
        both = sign("signs", place, BLOCK)
        both *= sign(f"block {block}", place * 8 // BLOCK, 8)
        expected[into] += both * (i + 1)
    assert sketch(tensor) == expected


@pytest.mark.parametrize("kind", ["random", "outer product", "one column", "row"])
def test_sketches_of_differences_estimate_their_norm(kind: str) -> None:
    """Within a factor of two, nine times of ten: 8 random signs each, not one."""
    ratios = []
    for seed in range(100):
        u, v = drawn(512, seed=seed), drawn(256, seed=1000 + seed)
        tensor = torch.outer(u, v)
        if kind == "random":
            tensor = drawn(512, 256, seed=seed)
        if kind == "one column":
            tensor = torch.zeros(512, 256)
            tensor[:, seed] = u
        if kind == "row":
            tensor = torch.zeros(512, 256)
            tensor[seed] = v
        ratios.append(norm_of(sketch(tensor)) / float(tensor.norm()))
    inside = [ratio for ratio in ratios if 0.5 < ratio < 2]
    assert len(inside) >= 90
    assert np.mean(np.square(ratios)) == pytest.approx(1, abs=0.25)


def test_number_types_share_a_sketch() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        narrow = drawn(100).to(dtype)
        assert sketch(narrow) == pytest.approx(sketch(narrow.double()), rel=1e-12)
    assert sketch(torch.tensor([True, False])) == sketch(torch.tensor([1.0, 0.0]))
    assert fingerprint(torch.tensor([3 + 4j]))["norm"] == 5.0
    assert math.isnan(fingerprint(torch.tensor([1.0, math.nan]))["norm"])


def test_sparse_gradients_are_those_of_the_dense() -> None:
    dense = torch.zeros(6, 2)
    dense[3] = torch.tensor([1.0, 2.0])
    assert fingerprint(dense.to_sparse()) == fingerprint(dense)

    # one that is large stays sparse
    def row(index: int) -> Tensor:
        size, values = (1 << 24, 2), torch.ones(1, 2)
        return torch.sparse_coo_tensor([[index]], values, size, check_invariants=True)

    one, same, other = (fingerprint(row(index)) for index in (5, 5, 6))
    assert one == same
    assert one["norm"] == pytest.approx(math.sqrt(2))
    assert one["hash"] != other["hash"]


def test_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state(), list(np.random.get_state()[1])
    fingerprint(drawn(3 * BLOCK))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
