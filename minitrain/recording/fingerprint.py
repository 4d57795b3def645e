"""Fingerprints of tensors: a BLAKE3 hash, a norm, and a sketch of eight numbers.

The sketch is linear: the sketch of a mean of tensors is the mean of their sketches, and
the distance of two sketches estimates the distance of two tensors, to about a third. So
a recording can be compared with another, or with the mean of its ranks, without the
tensors. Each element is added with a sign to one of eight bins. The sign is the product
of two random signs: by the element's place in its block of 16,384, and by the eighth of
the block it is in. Within a row of 64 elements the bins cycle, from a random one on. So
neither rows nor columns of a matrix share a bin or a sign.
"""

import hashlib
import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3
from torch import Tensor

from minitrain.data.cut import bytes_of
from minitrain.sync.strategy import whole

Numbers = npt.NDArray[Any]
# usual types, which NumPy has too
USUAL = (torch.float32, torch.float64, torch.complex64, torch.int64)
DIGEST_BYTES = 16
BINS = 8
# elements of a block, its eighths, elements of a row
BLOCK, PARTS, ROW = 1 << 14, 8, 64
PART = BLOCK // PARTS
# elements of the largest sparse tensor that is made dense
MOST_DENSE = 1 << 24
# so many blocks are added at a time: in float64 they stay in a processor's cache
TOGETHER = 4


def digest(tensor: Tensor) -> str:
    """Return the BLAKE3 hash of a tensor's bytes in row-major order: 32 hex digits.

    For a sharded tensor this and :func:`sketch`, :func:`fingerprint` and
    :func:`gathered` are collective: all ranks must call them.
    """
    return _hash_of(tensor, gathered(tensor))


def _hash_of(tensor: Tensor, dense: Tensor) -> str:
    found = blake3(bytes_in(dense))
    if stays_sparse(tensor):
        found.update(bytes_in(_coalesced(tensor).indices().cpu()))
    return found.hexdigest(length=DIGEST_BYTES)


def sketch(tensor: Tensor) -> list[float]:
    """Return eight numbers that are linear in the elements of ``tensor``, in row-major
    order. Its shape and dtype do not matter, except for rounding in float64.
    """
    return _sketch_and_norm(gathered(tensor))[0]


def fingerprint(tensor: Tensor) -> dict[str, Any]:
    """Return a dict of ``hash`` (of :func:`digest`), L2 ``norm`` and ``sketch``."""
    dense = gathered(tensor)
    sketched, norm = _sketch_and_norm(dense)
    return {"hash": _hash_of(tensor, dense), "norm": norm, "sketch": sketched}


def stays_sparse(tensor: Tensor) -> bool:
    """Return true for a sparse tensor that may be too large to be made dense."""
    return tensor.layout is not torch.strided and tensor.numel() > MOST_DENSE


def _coalesced(tensor: Tensor) -> Tensor:
    return tensor.detach().to_sparse_coo().coalesce()


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole tensor, dense and on the CPU, without a copy if possible. If it
    :func:`stays_sparse`, return its values alone.
    """
    if stays_sparse(tensor):
        dense = _coalesced(tensor).values()
    else:
        full = whole(tensor)
        dense = full.to_dense() if full.layout is not torch.strided else full
    return dense.resolve_conj().resolve_neg().cpu()


def bytes_in(dense: Tensor) -> memoryview:
    """Return the bytes of a tensor from :func:`gathered`, in row-major order."""
    if dense.dtype in USUAL and dense.is_contiguous():
        # several times as fast, which counts for small tensors
        return dense.numpy().reshape(-1).view(np.uint8).data
    return bytes_of(dense)


# no warning of an overflow: the infinity is recorded
@np.errstate(all="ignore")
def _sketch_and_norm(dense: Tensor) -> tuple[list[float], float]:
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    line = real.reshape(-1)
    flat = line.numpy() if line.dtype in USUAL else line
    bins, square = _of_few(flat) if len(flat) <= PART else _of_many(flat)
    return bins.tolist(), math.sqrt(square)


def _of_few(flat: Numbers | Tensor) -> tuple[Numbers, float]:
    # few calls, as these take most of the time for small tensors, which most are
    wide, (bins, signs) = _wide(flat), _first_part()
    signed = wide * signs[: len(wide)]
    return np.bincount(bins[: len(wide)], signed, BINS), float(np.vecdot(wide, wide))


def _of_many(flat: Numbers | Tensor) -> tuple[Numbers, float]:
    total, square = np.zeros((PARTS, PART)), 0.0
    # some blocks at a time: no copy of a whole tensor, and sums in float64
    for number, start in enumerate(range(0, len(flat), TOGETHER * BLOCK)):
        wide = _wide(flat[start : start + TOGETHER * BLOCK], BLOCK)
        blocks = wide.reshape(-1, PARTS, PART)
        signs = _signs_of_blocks(number)[: len(blocks)]
        total += np.einsum("bpj,bp->pj", blocks, signs)
        # in rows too short for BLAS to start threads, which would slow the run
        square += float(np.vecdot(blocks, blocks).sum())
    eights = total.reshape(-1, ROW // BINS, BINS)
    sums = np.einsum("rij,rij->rj", eights, _signs())
    return np.bincount(_bins_of_rows().reshape(-1), sums.reshape(-1), BINS), square


def _wide(flat: Numbers | Tensor, unit: int = 1) -> Numbers:
    # convert to float64, and pad with zeros to a multiple of ``unit``
    count = len(flat)
    wide = np.empty(-(-count // unit) * unit)
    wide[:count] = flat.double().numpy() if isinstance(flat, Tensor) else flat
    wide[count:] = 0
    return wide


@cache
def _first_part() -> tuple[Numbers, Numbers]:
    bins = np.tile(_bins_of_rows(), ROW // BINS).reshape(-1)[:PART]
    return bins, _signs().reshape(-1)[:PART] * _signs_of_blocks(0)[0, 0]


@cache
def _bins_of_rows() -> Numbers:
    first = np.frombuffer(_random_bytes("rows", BLOCK // ROW), np.uint8)
    return (first[:, None].astype(np.intp) + np.arange(BINS)) % BINS


@cache
def _signs() -> Numbers:
    return _random_signs("signs", BLOCK).reshape(-1, ROW // BINS, BINS)


@lru_cache(maxsize=1024)
def _signs_of_blocks(number: int) -> Numbers:
    blocks = range(number * TOGETHER, (number + 1) * TOGETHER)
    return np.stack([_random_signs(f"block {block}", PARTS) for block in blocks])


def _random_signs(name: str, count: int) -> Numbers:
    bits = np.unpackbits(np.frombuffer(_random_bytes(name, count // 8), np.uint8))
    return bits * 2.0 - 1


def _random_bytes(name: str, count: int) -> bytes:
    # no generator of torch: the run's own must not advance, and versions may differ
    stream = hashlib.shake_128(f"minitrain sketch 1: {name}".encode())
    return stream.digest(count)
