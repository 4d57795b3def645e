"""Samples and batches of given texts."""

from pathlib import Path

import numpy as np
import torch

from minitrain.data.batches import MicroBatch, RankBatches, ShardFiles
from minitrain.data.shards import Samples, write_shards
from minitrain.data.text import tokenize

# 1 to 5 letters: 2 to 6 targets each, since a sample of n letters has n + 2 tokens
ELEVEN = ["a", "bb", "ccc", "dddd", "e", "ff", "ggg", "hhhhh", "i", "jj", "kkk"]


def samples_of(texts: list[str]) -> Samples:
    """The samples that a corpus of ``texts`` becomes when none is too long."""
    tokens = [tokenize(text) for text in texts]
    offsets = np.cumsum([0, *(len(one) for one in tokens)])
    return Samples(np.frombuffer(b"".join(tokens), np.uint8), offsets)


def dealt(folder: Path, world_size: int, texts: list[str]) -> Path:
    """A folder of shards of ``texts``, made if it is not there."""
    path = folder / f"world-{world_size}"
    if not path.exists():
        write_shards(path, samples_of(texts), world_size)
    return path


def rank_batches(
    folder: Path,
    rank: int,
    world_size: int,
    texts: list[str],
    *,
    global_batch_size: int = 4,
    seed: int = 3,
    num_files: int | None = None,
    num_micro_batches: int = 1,
) -> RankBatches:
    """The batches of one rank over ``texts``, padded to eight tokens."""
    files = num_files or world_size
    dealt_in = dealt(folder, files, texts)
    data = ShardFiles(dealt_in, files, 8, global_batch_size, seed)
    return data.open([rank], world_size, num_micro_batches)


def batch_of(rows: list[list[int]], block_size: int) -> MicroBatch:
    """A batch of one process that holds these tokens, padded to ``block_size``."""
    ids = torch.zeros(len(rows), block_size, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = labels[index, : len(row)] = torch.tensor(row)
    targets = sum(len(row) - 1 for row in rows)
    inputs = {"input_ids": ids, "labels": labels}
    return MicroBatch(0, inputs, targets, targets, (), 0)
