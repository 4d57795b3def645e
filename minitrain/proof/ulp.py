"""Distances between tensors: equal bits, units in the last place, absolute."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# its temporaries fit a processor's cache, and the allocator keeps them
CHUNK_ELEMENTS = 1 << 14


@dataclass(frozen=True)
class Distance:
    """Largest distance between two named sets of tensors. ``tensor`` is the first that
    differs, or None; distances are None if names, shapes, dtypes or a NaN prevent a
    comparison, and ``max_abs_diff`` also if an infinity meets a different value.
    """

    bytes_equal: bool
    max_ulp: int | None
    max_abs_diff: float | None
    tensor: str | None


@dataclass(frozen=True)
class Gap:
    """Distance of two tensors of one dtype and shape: the number of elements with
    different bits, and the flat index of the ``first``; None as in :class:`Distance`.
    """

    num_different: int
    first: int | None
    max_ulp: int | None
    max_abs_diff: float | None


def ulp_distance(a: Tensor, b: Tensor) -> npt.NDArray[np.uint64]:
    """Return the number of representable values between two tensors of one dtype, per
    element, flat; a complex number has two. Also correct across zero. NaN has no place
    in this order: check for it first.
    """
    x, y = _ordered(_flat(a)), _ordered(_flat(b))
    return np.where(x > y, x - y, y - x)


def _ordered(flat: Tensor) -> npt.NDArray[np.uint64]:
    # unsigned integers in the order of the numbers that they represent
    bits = _unsigned(flat).astype(np.uint64)
    half = np.uint64(1 << (8 * flat.element_size() - 1))
    # a scale such as float8_e8m0fnu has no sign
    if flat.is_floating_point() and flat.dtype.is_signed:
        # a negative float's bits grow as its value falls; both zeros land on `half`
        return np.where(bits >= half, half - (bits - half), bits + half)
    # a negative integer's bits (two's complement) are the larger half
    return bits ^ half if flat.dtype.is_signed else bits


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Distance:
    """Return the distance between two sets of CPU tensors, compared by name."""
    for name in sorted(a.keys() ^ b.keys()):
        return Distance(False, None, None, name)
    differing, ulp, gap = [], 0, 0.0
    for name in a:
        apart = tensor_gap(a[name], b[name]) if same_kind(a[name], b[name]) else None
        if apart is None or apart.max_ulp is None:
            return Distance(False, None, None, name)
        if apart.num_different:
            differing.append(name)
        ulp = max(ulp, apart.max_ulp)
        gap = max(gap, math.inf if apart.max_abs_diff is None else apart.max_abs_diff)
    size = gap if math.isfinite(gap) else None
    return Distance(not differing, ulp, size, next(iter(differing), None))


def tensor_gap(a: Tensor, b: Tensor) -> Gap:
    """Return the gap of two tensors of one dtype and shape; chunks save memory."""
    count, first, ulp, gap, nan = 0, None, 0, 0.0, False
    flat_a, flat_b = _flat(a), _flat(b)
    for start in range(0, flat_a.numel(), CHUNK_ELEMENTS):
        x, y = (flat[start : start + CHUNK_ELEMENTS] for flat in (flat_a, flat_b))
        places = (_unsigned(x) != _unsigned(y)).nonzero()[0]
        if not len(places):
            continue
        count += len(places)
        first = start + int(places[0]) if first is None else first
        if x.is_floating_point() and bool(x.isnan().any() or y.isnan().any()):
            nan = True
            continue
        ulp = max(ulp, int(ulp_distance(x, y).max()))
        gap = max(gap, float(gaps(x, y).max()))
    if nan:
        return Gap(count, first, None, None)
    return Gap(count, first, ulp, gap if math.isfinite(gap) else None)


def gaps(a: Tensor, b: Tensor) -> Tensor:
    """Return |a - b| in float64, flat; equal values, including infinities, give 0."""
    x, y = _flat(a).double(), _flat(b).double()
    return (x - y).abs().masked_fill(x == y, 0.0)


def same_kind(a: Tensor, b: Tensor) -> bool:
    """Return whether dtype and shape are the same."""
    return a.dtype == b.dtype and a.shape == b.shape


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors of one dtype and shape hold the same bytes."""
    x, y = (_flat(t).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


def _flat(tensor: Tensor) -> Tensor:
    # one dimension, real numbers; a contiguous tensor is not copied
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # a single element is contiguous with any stride, which would make view() fail
    flat = whole.as_strided((whole.numel(),), (1,))
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _unsigned(flat: Tensor) -> npt.NDArray[np.unsignedinteger]:
    return flat.view(torch.uint8).numpy().view(f"u{flat.element_size()}")
