"""Shards: which samples a rank reads, and how they lie on disk.

Sample i belongs to rank ``i % world_size``. A shard is a pair of .npy files that are
memory-mapped, so that a training process does not grow with the corpus.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minitrain.core.errors import EvidenceError, UserError
from minitrain.core.files import read_json, sha256_file, write_json
from minitrain.data.text import LongSamples, fit_to_block, tokenize

Tokens = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
SliceableT = TypeVar("SliceableT", bound=Any)


def make_shard(rank: int, world_size: int, samples: SliceableT) -> SliceableT:
    """The samples i of a sequence with ``i % world_size == rank``, in order.

    Works on whatever slices: list, range, array. Raises UserError for a rank outside
    0..world_size-1 and where some rank would get no sample at all.
    """
    if not 0 <= rank < world_size:
        raise UserError(f"rank = {rank}: must be from 0 to {world_size - 1}")
    if len(samples) < world_size:
        raise UserError(
            f"world size = {world_size}: must be at most the number of samples, "
            f"{len(samples)}"
        )
    return samples[rank::world_size]


@dataclass(frozen=True)
class Samples:
    """Token sequences laid end to end: sample i is ``tokens[offsets[i]:offsets[i+1]]``.

    ``tokens`` is uint8 of shape (total,), ``offsets`` int64 of shape (samples + 1,).
    """

    tokens: Tokens
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each sample, shape (samples,)."""
        return np.diff(self.offsets)

    def sha256(self) -> str:
        """SHA-256 over lengths and tokens: equal exactly for equal samples in order."""
        digest = hashlib.sha256(self.lengths().tobytes())
        digest.update(np.ascontiguousarray(self.tokens).data)
        return digest.hexdigest()


def tokenize_corpus(
    lines: Iterable[str], block_size: int, policy: LongSamples
) -> tuple[Samples, int]:
    """Tokens of the texts in a corpus.jsonl, and how many were longer than the block.

    ``lines`` are JSON objects with a ``text``. Longer samples are handled by
    ``policy``, see :func:`~minitrain.data.text.fit_to_block`.
    """
    tokens, lengths, num_long = bytearray(), [], 0
    for line in lines:
        sample = tokenize(json.loads(line)["text"])
        num_long += len(sample) > block_size
        for piece in fit_to_block(sample, block_size, policy):
            tokens += piece
            lengths.append(len(piece))
    return Samples(np.frombuffer(tokens, np.uint8), _offsets(lengths)), num_long


def _offsets(lengths: Any) -> Offsets:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def write_shards(folder: Path, samples: Samples, world_size: int) -> None:
    """Write what each of ``world_size`` ranks reads into ``folder``, and index.json.

    The index holds counts, the first text of each rank, SHA-256s of the files, and
    ``samples_sha256``, the hash of the samples dealt back from the shards on disk.
    Raises EvidenceError when that differs from ``samples``: the proof of full coverage
    without overlap. Raises UserError for more ranks than samples.
    """
    folder.mkdir(parents=True)
    ranks = _write_ranks(folder, samples, world_size)
    np.save(folder / "targets.npy", (samples.lengths() - 1).astype(np.uint32))
    rebuilt = deal_back([open_shard(folder, rank) for rank in range(world_size)])
    if rebuilt != samples.sha256():
        raise EvidenceError(f"{folder}: the shards together are not the corpus")
    index = {
        "world_size": world_size,
        "samples": len(samples),
        "targets": int(samples.lengths().sum()) - len(samples),
        "samples_sha256": rebuilt,
        "ranks": ranks,
    }
    write_json(folder / "index.json", index)


def _write_ranks(
    folder: Path, samples: Samples, world_size: int
) -> list[dict[str, Any]]:
    owner = _owner_of_tokens(samples.lengths(), world_size)
    ranks = []
    for rank in range(world_size):
        lengths = make_shard(rank, world_size, samples.lengths())
        tokens_path, offsets_path = _shard_paths(folder, rank)
        np.save(tokens_path, samples.tokens[owner == rank])
        np.save(offsets_path, _offsets(lengths))
        ranks.append(
            {
                "rank": rank,
                "samples": len(lengths),
                "targets": int(lengths.sum()) - len(lengths),
                "first_text": decode(samples[rank]),
                "sha256": {p.name: sha256_file(p) for p in (tokens_path, offsets_path)},
            }
        )
    return ranks


def deal_back(shards: list[Samples]) -> str:
    """SHA-256 of the samples that ``shards`` hold, taken from the ranks in turn."""
    world_size = len(shards)
    lengths = np.full(sum(len(shard) for shard in shards), -1, np.int64)
    for rank, shard in enumerate(shards):
        target = lengths[rank::world_size]
        if len(target) != len(shard) or shard.offsets[-1] != len(shard.tokens):
            return "unequal shards"
        target[:] = shard.lengths()
    owner = _owner_of_tokens(lengths, world_size)
    tokens = np.empty(int(lengths.sum()), np.uint8)
    for rank, shard in enumerate(shards):
        tokens[owner == rank] = shard.tokens
    return Samples(tokens, _offsets(lengths)).sha256()


def open_shard(folder: Path, rank: int) -> Samples:
    """Memory-map what ``rank`` reads from a folder that :func:`write_shards` wrote."""
    tokens, offsets = (np.load(p, mmap_mode="r") for p in _shard_paths(folder, rank))
    return Samples(tokens, offsets)


def open_targets(folder: Path) -> npt.NDArray[np.uint32]:
    """Memory-map the number of real targets of every sample, in corpus order."""
    targets: npt.NDArray[np.uint32] = np.load(folder / "targets.npy", mmap_mode="r")
    return targets


def first_texts(folder: Path) -> list[str]:
    """The first text of each rank's shard."""
    return [rank["first_text"] for rank in read_json(folder / "index.json")["ranks"]]


def decode(tokens: Tokens) -> str:
    """The text of a sample, without its boundary marks."""
    return tokens.tobytes().strip(b"\xff").decode("utf-8", errors="replace")


def _owner_of_tokens(lengths: Any, world_size: int) -> npt.NDArray[Any]:
    # the corpus may have tens of millions of tokens: as few bytes for each as will do
    owner = np.arange(len(lengths), dtype=np.uint32) % world_size
    return np.repeat(owner.astype(np.min_scalar_type(world_size - 1)), lengths)


def _shard_paths(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"rank-{rank}.tokens.npy", folder / f"rank-{rank}.offsets.npy"
