"""What is kept of a tensor: its SHA-256, its norm, and a sketch of eight numbers.

The sketch is linear: that of a mean of tensors is the mean of their sketches, and the
norm of the difference of two sketches estimates that of the difference of two tensors,
to about a third. So a recording can be held against another, or against the mean of
its ranks, without the tensors. Each element is added to one of the bins with a sign.
Half of the sign is random by the element's place in a block, the other half by the
block and the eighth of it; bins go round in a row of 64, from a random one on. So
neither rows nor columns of a matrix share a bin or a sign.
"""

import hashlib
import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minitrain.data.cut import bytes_of
from minitrain.sync.strategy import whole

Numbers = npt.NDArray[Any]
BINS = 8
# elements: in float64 a block and the sum of blocks stay in a processor's cache
BLOCK = 1 << 14
PARTS = 8
ROW = 64


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
    flat = real.reshape(-1)
    num_rows = min(BLOCK // ROW, -(-len(flat) // ROW))
    total, square = torch.zeros(num_rows * ROW, dtype=torch.float64), 0.0
    # block upon block: no copy of a whole tensor, and sums in float64
    for number, block in enumerate(flat.split(BLOCK)):
        wide = block.double()
        # not by BLAS, whose threads would contend with those of the run
        square += float(torch.linalg.vector_norm(wide)) ** 2
        if len(wide) == BLOCK:
            parts = wide.view(PARTS, -1)
            total.view(PARTS, -1).addcmul_(parts, _signs_of_block(number))
        else:
            total[: len(wide)].addcmul_(wide, _each_sign(number)[: len(wide)])
    signed = total.mul_(_signs()[: len(total)])
    rows = signed.view(num_rows, ROW // BINS, BINS).sum(1).view(-1).numpy()
    bins = np.bincount(_bins_of_rows()[: len(rows)], rows, BINS)
    return bins.tolist(), math.sqrt(square)


@cache
def _bins_of_rows() -> Numbers:
    first = np.frombuffer(_random_bytes("rows", BLOCK // ROW), np.uint8)
    bins = (first[:, None].astype(np.intp) + np.arange(BINS)) % BINS
    return bins.reshape(-1)


@cache
def _signs() -> Tensor:
    return _random_signs("signs", BLOCK)


@lru_cache(maxsize=4096)
def _signs_of_block(number: int) -> Tensor:
    return _random_signs(f"block {number}", PARTS).view(PARTS, 1)


@lru_cache(maxsize=4)
def _each_sign(number: int) -> Tensor:
    return _signs_of_block(number).expand(-1, BLOCK // PARTS).reshape(-1)


def _random_signs(name: str, count: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(_random_bytes(name, count // 8), np.uint8))
    return torch.from_numpy(bits * 2.0 - 1)


def _random_bytes(name: str, count: int) -> bytes:
    # from no generator: a run's own must not move, and every torch has the same
    stream = hashlib.shake_128(f"minitrain sketch 1: {name}".encode())
    return stream.digest(count)
