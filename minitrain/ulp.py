"""Distances between tensors: equal bits, units in the last place, absolute."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BITS = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}
BITS |= {8: (torch.int64, np.uint64)}


@dataclass(frozen=True)
class Distance:
    """How far two sets of tensors are apart; ``tensor`` is the first that
    differs, or the first that cannot be compared.

    ``max_ulp`` and ``max_abs_diff`` are None where they have no value: a NaN on one
    side, or tensors that cannot be compared.
    """

    bytes_equal: bool
    max_ulp: int | None
    max_abs_diff: float | None
    tensor: str | None


def ulp_distance(a: Tensor, b: Tensor) -> npt.NDArray[np.uint64]:
    """Units in the last place between floating tensors of one dtype, per element.

    The number of representable values between the two, so it counts across zero; -0.0
    and 0.0 are 0 apart. NaN has no place in the order: callers look for it first.
    """
    x, y = _ordered(a), _ordered(b)
    return np.where(x > y, x - y, y - x)


def _ordered(tensor: Tensor) -> npt.NDArray[np.uint64]:
    """Unsigned integers in the order of the floats that they stand for."""
    signed, unsigned = BITS[tensor.element_size()]
    flat = tensor.detach().contiguous().reshape(-1).view(signed).numpy()
    bits = flat.view(unsigned).astype(np.uint64)
    half = np.uint64(1 << (8 * tensor.element_size() - 1))
    # a negative float's bits grow as its value falls; both zeros land on `half`
    return np.where(bits >= half, half - (bits - half), bits + half)


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Distance:
    """Compare two named sets of tensors; names, shapes and dtypes must agree too."""
    for name in sorted(a.keys() ^ b.keys()):
        return Distance(False, None, None, name)
    differing = [name for name in a if not _same(a[name], b[name])]
    if not differing:
        return Distance(True, 0, 0.0, None)
    for name in differing:
        if not _comparable(a[name], b[name]):
            return Distance(False, None, None, name)
    ulp = max(int(ulp_distance(a[n], b[n]).max()) for n in differing)
    gap = max(float(gaps(a[n], b[n]).max()) for n in differing)
    return Distance(False, ulp, gap if math.isfinite(gap) else None, differing[0])


def gaps(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| in float64, element by element; equal values, infinities too, give 0."""
    x, y = a.detach().double(), b.detach().double()
    return (x - y).abs().masked_fill(x == y, 0.0)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and same_bits(a, b)


def _comparable(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or not a.is_floating_point():
        return False
    return not bool(a.isnan().any() or b.isnan().any())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bytes (NaN included)."""
    x, y = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)
