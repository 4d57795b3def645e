"""Shards: which samples a rank reads, and how they lie on disk.

Sample i belongs to rank ``i % world_size``. A shard is a pair of .npy files that are
memory-mapped, so that a training process does not grow with the corpus. Nor does
dealing: it goes block by block.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from minitrain.core.errors import EvidenceError, UserError
from minitrain.core.files import (
    open_atomic,
    read_json,
    reading,
    sha256_file,
    write_json,
    writing,
)
from minitrain.core.regular import require_regular
from minitrain.data.samples import BLOCK_TOKENS, Samples, Tokens
from minitrain.data.text import LongSamples, fit_to_block, tokenize

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


def tokenize_corpus(
    texts: Iterable[str],
    block_size: int,
    policy: LongSamples,
    spool: Path | None = None,
) -> tuple[Samples, int]:
    """Tokens of the ``texts`` of a corpus, and how many were longer than the block.

    Longer samples are handled by ``policy``, see
    :func:`~minitrain.data.text.fit_to_block`. The samples lie in files without a name
    in the folder ``spool`` (None: that for temporary files).
    """
    end = num_long = 0
    place = spool or Path(gettempdir())
    with (
        writing(place),
        TemporaryFile(dir=spool) as tokens,
        TemporaryFile(dir=spool) as offsets,
    ):
        offsets.write(end.to_bytes(8, sys.byteorder))
        for text in texts:
            sample = tokenize(text)
            num_long += len(sample) > block_size
            for piece in fit_to_block(sample, block_size, policy):
                end += len(piece)
                tokens.write(piece)
                offsets.write(end.to_bytes(8, sys.byteorder))
        return Samples(_mapped(tokens, np.uint8), _mapped(offsets, np.int64)), num_long


def _mapped(file: IO[bytes], dtype: Any) -> Any:
    file.flush()
    # nothing cannot be mapped
    return np.memmap(file, dtype, "r") if file.tell() else np.empty(0, dtype)


@contextmanager
def _growing_array(path: Path, dtype: Any) -> Iterator[Callable[[Any], None]]:
    """A one-dimensional .npy file, by what appends to it."""
    count = 0
    with open_atomic(path, "wb") as file:

        def header() -> None:
            # NumPy leaves room for the number to grow
            descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
            fields = {"descr": descr, "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(file, fields)

        def append(values: Any) -> None:
            nonlocal count
            count += len(values)
            file.write(np.ascontiguousarray(values, dtype).data)

        header()
        yield append
        file.seek(0)
        header()


def write_shards(folder: Path, samples: Samples, world_size: int) -> None:
    """Write what each of ``world_size`` ranks reads into ``folder``, and index.json.

    The index holds counts, the first text of each rank, SHA-256s of the files, and
    ``samples_sha256``, the hash of the samples dealt back from the shards on disk.
    Raises EvidenceError when that differs from ``samples``: the proof of full coverage
    without overlap. Raises UserError for more ranks than samples.
    """
    folder.mkdir(parents=True)
    ranks = _write_ranks(folder, samples, world_size)
    with _growing_array(folder / "targets.npy", np.uint32) as append:
        for block in samples.blocks():
            append(block.lengths() - 1)
    rebuilt = deal_back([_map_shard(folder, rank) for rank in range(world_size)])
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


def _write_ranks(
    folder: Path, samples: Samples, world_size: int
) -> list[dict[str, Any]]:
    ranks = []
    for rank in range(world_size):
        paths = _shard_paths(folder, rank)
        num_samples, num_tokens = _write_rank(*paths, samples, rank, world_size)
        ranks.append(
            {
                "rank": rank,
                "samples": num_samples,
                "targets": num_tokens - num_samples,
                "first_text": decode(samples[rank]),
                "sha256": {path.name: sha256_file(path) for path in paths},
            }
        )
    return ranks


def _write_rank(
    tokens_path: Path, offsets_path: Path, samples: Samples, rank: int, world_size: int
) -> tuple[int, int]:
    num_samples = end = 0
    with (
        _growing_array(tokens_path, np.uint8) as add_tokens,
        _growing_array(offsets_path, np.int64) as add_offsets,
    ):
        add_offsets([end])
        for block in samples.blocks(world_size):
            lengths = block.lengths()
            mine = make_shard(rank, world_size, lengths)
            add_tokens(block.tokens[_owner_of_tokens(lengths, world_size) == rank])
            add_offsets(end + np.cumsum(mine))
            num_samples += len(mine)
            end += int(mine.sum())
    return num_samples, end


def deal_back(shards: list[Samples]) -> str:
    """SHA-256 of the samples that ``shards`` hold, taken from the ranks in turn: equal
    to :meth:`Samples.sha256` of the corpus exactly if each is there once, in order.
    """
    total = sum(map(len, shards))
    for rank, shard in enumerate(shards):
        fair = len(range(rank, total, len(shards)))
        if len(shard) != fair or shard.offsets[-1] != len(shard.tokens):
            return "unequal shards"
    # as Samples.sha256 does it
    digest = hashlib.sha256()
    for pieces in _rounds(shards):
        digest.update(_lengths_of(pieces).tobytes())
    for pieces in _rounds(shards):
        owner = _owner_of_tokens(_lengths_of(pieces), len(pieces))
        tokens = np.empty(len(owner), np.uint8)
        for rank, piece in enumerate(pieces):
            tokens[owner == rank] = piece.tokens
        digest.update(tokens.data)
    return digest.hexdigest()


def _rounds(shards: list[Samples]) -> Iterator[list[Samples]]:
    """Pieces of all shards: of each the same samples, some BLOCK_TOKENS together."""
    first, limit = 0, BLOCK_TOKENS // len(shards)
    while first < len(shards[0]):
        stop = max(first + 1, min(shard.stop(first, limit) for shard in shards))
        yield [shard.piece(first, stop) for shard in shards]
        for shard in shards:
            shard.release()
        first = stop


def _lengths_of(pieces: list[Samples]) -> npt.NDArray[np.int64]:
    lengths = np.empty(sum(map(len, pieces)), np.int64)
    for rank, piece in enumerate(pieces):
        lengths[rank :: len(pieces)] = piece.lengths()
    return lengths


def open_shard(folder: Path, rank: int) -> Samples:
    """Memory-map what ``rank`` reads from a folder that :func:`write_shards` wrote.

    Raises FileNotFoundError where the folder has no files of that rank, and UserError
    where they are not as they were written: whoever trains on other samples than those
    of the corpus must not find it out at the end.
    """
    index = read_json(folder / "index.json", "ranks")
    for path in _shard_paths(folder, rank):
        with reading(path):
            if sha256_file(path) != index["ranks"][rank]["sha256"][path.name]:
                raise ValueError("not the SHA-256 that stands in index.json")
    return _map_shard(folder, rank)


def _map_shard(folder: Path, rank: int) -> Samples:
    return Samples(*map(_open_array, _shard_paths(folder, rank)))


def _open_array(path: Path) -> Any:
    with reading(path):
        return np.load(require_regular(path), mmap_mode="r")


def open_targets(folder: Path) -> npt.NDArray[np.uint32]:
    """Memory-map the number of real targets of every sample: uint32 of shape
    (samples,), in corpus order.
    """
    targets: npt.NDArray[np.uint32] = _open_array(folder / "targets.npy")
    return targets


def first_texts(folder: Path) -> list[str]:
    """The first text of each rank's shard, by rank."""
    index = read_json(folder / "index.json", "ranks")
    return [rank["first_text"] for rank in index["ranks"]]


def decode(tokens: Tokens) -> str:
    """The text of a sample, without its boundary marks."""
    return tokens.tobytes().strip(b"\xff").decode("utf-8", errors="replace")


def _owner_of_tokens(lengths: Any, world_size: int) -> npt.NDArray[Any]:
    return np.repeat(np.arange(len(lengths)) % world_size, lengths)


def _shard_paths(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"rank-{rank}.tokens.npy", folder / f"rank-{rank}.offsets.npy"
