"""Shards: assignment of samples to ranks, and their format on disk.

Sample i belongs to rank ``i % world_size``. A shard is a pair of memory-mapped .npy
files, so a training process holds no tokens in memory, only the order of samples, 4
bytes per sample. Writing shards holds all tokens in memory, one byte each.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minitrain.core.errors import EvidenceError, UserError
from minitrain.core.files import (
    open_atomic,
    read_json,
    reading,
    require_regular,
    sha256_file,
    write_json,
)
from minitrain.data.text import LongSamples, fit_to_block, tokenize

Tokens = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
SliceableT = TypeVar("SliceableT", bound=Any)


@dataclass(frozen=True)
class Samples:
    """Concatenated token sequences: sample i is ``tokens[offsets[i]:offsets[i+1]]``.

    ``tokens`` is uint8 of shape (total,), ``offsets`` int64 of shape (samples + 1,).
    """

    tokens: Tokens
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> Int64s:
        """Return the number of tokens in each sample, shape (samples,)."""
        return np.diff(self.offsets)

    def sha256(self) -> str:
        """Return the SHA-256 of lengths and tokens."""
        digest = hashlib.sha256(self.lengths().tobytes())
        digest.update(self.tokens.data)
        return digest.hexdigest()


def make_shard(rank: int, world_size: int, samples: SliceableT) -> SliceableT:
    """Return the samples i of a sequence with ``i % world_size == rank``, in order.

    Raises UserError if ``rank`` is out of range, or there are fewer samples than ranks.
    """
    if not 0 <= rank < world_size:
        raise UserError(f"rank = {rank}: must be from 0 to {world_size - 1}")
    if len(samples) < world_size:
        raise UserError(
            f"world size = {world_size}: must be at most the number of samples, "
            f"{len(samples)}"
        )
    return samples[rank::world_size]


def tokenize_corpus(
    texts: Iterable[str], block_size: int, policy: LongSamples
) -> tuple[Samples, int]:
    """Return the tokens of ``texts``, and the number of texts with over ``block_size``
    tokens, which :func:`~minitrain.data.text.fit_to_block` splits or cuts.
    """
    tokens, offsets, num_long = bytearray(), [0], 0
    for text in texts:
        sample = tokenize(text)
        num_long += len(sample) > block_size
        for piece in fit_to_block(sample, block_size, policy):
            tokens += piece
            offsets.append(len(tokens))
    return Samples(np.frombuffer(tokens, np.uint8), np.array(offsets)), num_long


def write_shards(folder: Path, samples: Samples, world_size: int) -> None:
    """Write the shards of ``world_size`` ranks into the new ``folder``, with each
    sample's number of targets (targets.npy) and index.json: counts, texts, SHA-256s.

    Raises:
        EvidenceError: the reassembled samples differ from ``samples``; their equality
            proves full coverage without overlap.
        UserError: there are fewer samples than ranks.
    """
    folder.mkdir(parents=True)
    ranks = [
        _write_rank(folder, samples, rank, world_size) for rank in range(world_size)
    ]
    _save(folder / "targets.npy", (samples.lengths() - 1).astype(np.uint32))
    shards = [_map_shard(folder, rank) for rank in range(world_size)]
    rebuilt = deal_back(shards).sha256()
    if rebuilt != samples.sha256():
        raise EvidenceError(f"{folder}: the shards together are not the corpus")
    index = {
        "world_size": world_size,
        "samples": len(samples),
        "targets": int(samples.offsets[-1]) - len(samples),
        "samples_sha256": rebuilt,
        "ranks": ranks,
    }
    write_json(folder / "index.json", index)


def _write_rank(
    folder: Path, samples: Samples, rank: int, world_size: int
) -> dict[str, Any]:
    mine = make_shard(rank, world_size, range(len(samples)))
    offsets = np.zeros(len(mine) + 1, np.int64)
    samples.lengths()[np.asarray(mine)].cumsum(out=offsets[1:])
    paths = tokens_path, offsets_path = _shard_paths(folder, rank)
    _save(tokens_path, np.concatenate([samples[index] for index in mine]))
    _save(offsets_path, offsets)
    return {
        "rank": rank,
        "samples": len(mine),
        "targets": int(offsets[-1]) - len(mine),
        "first_text": decode(samples[rank]),
        "sha256": {path.name: sha256_file(path) for path in paths},
    }


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with open_atomic(path, "wb") as file:
        np.save(file, array)


def deal_back(shards: list[Samples]) -> Samples:
    """Return the samples reassembled from the ``shards`` of all ranks."""
    world_size, total = len(shards), sum(map(len, shards))
    samples = [shards[i % world_size][i // world_size] for i in range(total)]
    return Samples(np.concatenate(samples), np.cumsum([0, *map(len, samples)]))


def open_shard(folder: Path, rank: int) -> Samples:
    """Memory-map the shard of ``rank`` in a folder written by :func:`write_shards`.
    Raises FileNotFoundError if the folder has no files of that rank, and UserError if a
    file is damaged: its SHA-256 is not the one in index.json.
    """
    index = read_json(folder / "index.json", "ranks")
    for path in _shard_paths(folder, rank):
        with reading(path):
            if sha256_file(path) != index["ranks"][rank]["sha256"][path.name]:
                raise ValueError("SHA-256 differs from index.json")
    return _map_shard(folder, rank)


def _map_shard(folder: Path, rank: int) -> Samples:
    return Samples(*map(_open_array, _shard_paths(folder, rank)))


def _open_array(path: Path) -> Any:
    with reading(path):
        return np.load(require_regular(path), mmap_mode="r")


def open_targets(folder: Path) -> npt.NDArray[np.uint32]:
    """Return the memory-mapped number of targets of each corpus sample, uint32 (n,)."""
    return _open_array(folder / "targets.npy")


def first_texts(folder: Path) -> list[str]:
    """Return the first text of each rank's shard, by rank."""
    index = read_json(folder / "index.json", "ranks")
    return [rank["first_text"] for rank in index["ranks"]]


def decode(tokens: Tokens) -> str:
    """Return the text of a sample without boundary tokens; replace invalid bytes."""
    return tokens.tobytes().strip(b"\xff").decode("utf-8", errors="replace")


def _shard_paths(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"rank-{rank}.tokens.npy", folder / f"rank-{rank}.offsets.npy"
