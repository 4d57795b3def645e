"""What is kept of a tensor: its SHA-256, its norm, and a sketch of eight numbers.

The sketch is linear: that of a mean of tensors is the mean of their sketches, and the
norm of the difference of two sketches estimates that of the difference of two tensors,
to about a third. So a recording can be held against another, or against the mean of
its ranks, without the tensors. Each element is added to one of the bins with a sign.
The bin and half of the sign are random by its place in a block, the other half by block
and bin: neither rows nor columns of a matrix share them.
"""

import hashlib
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minitrain.data.cut import bytes_of
from minitrain.sync.strategy import whole

Numbers = npt.NDArray[Any]
BINS = 8
# elements: in float64 a block and its signs stay in a processor's cache
BLOCK = 1 << 14


def digest(tensor: Tensor) -> str:
    """The first 32 hex digits of the SHA-256 of a tensor's bytes in row-major order.

    Collective where ranks hold a part of the tensor each, as all of this module is.
    """
    return _digest(gathered(tensor))


def sketch(tensor: Tensor) -> list[float]:
    """Eight numbers, linear in ``tensor``; the same for the same elements whatever
    their type, but for the rounding of float64.
    """
    return _sketch_and_norm(gathered(tensor))[0]


def fingerprint(tensor: Tensor) -> dict[str, Any]:
    """``sha`` (of :func:`digest`), ``norm`` and ``sketch``."""
    dense = gathered(tensor)
    sketched, norm = _sketch_and_norm(dense)
    return {"sha": _digest(dense), "norm": norm, "sketch": sketched}


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor, dense and on the CPU; a copy only where it is not so already."""
    full = whole(tensor)
    dense = full.to_dense() if full.layout is not torch.strided else full
    return dense.resolve_conj().resolve_neg().cpu()


def _digest(dense: Tensor) -> str:
    return hashlib.sha256(bytes_of(dense)).hexdigest()[:32]


def _sketch_and_norm(dense: Tensor) -> tuple[list[float], float]:
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    signs, places = _signs(), _places()
    bins, square = np.zeros(BINS), 0.0
    for number, block in enumerate(real.reshape(-1).split(BLOCK)):
        # piece by piece: no copy of a whole tensor, and sums in float64
        wide = block.double().numpy()
        # not by BLAS, which would take a thread on each core, beside other ranks
        square += float(np.square(wide).sum())
        wide = wide * signs[: len(wide)]
        bins += np.bincount(places[: len(wide)], wide, BINS) * _signs_of_block(number)
    return bins.tolist(), math.sqrt(square)


@cache
def _places() -> Numbers:
    drawn = np.frombuffer(_random_bytes("places", BLOCK), np.uint8) % BINS
    # as bincount wants them: else it would convert them block after block
    return drawn.astype(np.intp)


@cache
def _signs() -> Numbers:
    return _random_signs("signs", BLOCK)


@cache
def _signs_of_block(number: int) -> Numbers:
    return _random_signs(f"block {number}", BINS)


def _random_signs(name: str, count: int) -> Numbers:
    bits = np.unpackbits(np.frombuffer(_random_bytes(name, count // 8), np.uint8))
    return bits * 2.0 - 1


def _random_bytes(name: str, count: int) -> bytes:
    # from no generator: a run's own must not move, and every torch has the same
    stream = hashlib.shake_128(f"minitrain sketch 1: {name}".encode())
    return stream.digest(count)
