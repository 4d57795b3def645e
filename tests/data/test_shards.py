from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from one_line import refusal
from samples_of_text import ELEVEN, samples_of

from minitrain.core.errors import EvidenceError
from minitrain.core.files import read_json, sha256_file
from minitrain.data import shards as data
from minitrain.data.shards import (
    Samples,
    decode,
    first_texts,
    make_shard,
    open_shard,
    open_targets,
    tokenize_corpus,
    write_shards,
)
from minitrain.data.text import LongSamples


def shard_texts(shard: Samples) -> list[str]:
    return [decode(shard[index]) for index in range(len(shard))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "world-3", samples_of(ELEVEN), 3)
    return tmp_path / "world-3"


def test_make_shard_of_a_sequence() -> None:
    # indices 1 and 4: those with i % 3 == 1
    assert make_shard(1, 3, list("abcdefg")) == list("be")
    assert make_shard(1, 3, "abcdefg") == "be"
    assert make_shard(1, 3, range(10, 17)) == range(11, 17, 3)


def test_ranks_that_cannot_be(tmp_path: Path) -> None:
    for rank in (-1, 3, 4):
        line = refusal(make_shard, rank, 3, range(10))
        assert line == f"rank = {rank}: must be from 0 to 2"
    line = "world size = 4: must be at most the number of samples, 3"
    assert refusal(make_shard, 0, 4, range(3)) == line
    assert refusal(write_shards, tmp_path / "x", samples_of(["a", "b", "c"]), 4) == line


@pytest.mark.parametrize("name", ["rank-1.tokens.npy", "rank-1.offsets.npy"])
def test_shard_of_which_one_bit_was_altered_is_refused(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    line = refusal(open_shard, folder, 1)
    assert line.startswith(f"{folder / name}: damaged, or not of this version")
    assert "SHA-256 differs from index.json" in line
    assert len(open_shard(folder, 0)) == 4


def test_shards_are_memory_mapped(folder: Path) -> None:
    shard = open_shard(folder, 1)
    for array in (shard.tokens, shard.offsets, open_targets(folder), shard[0]):
        assert isinstance(array, np.memmap)
    assert not shard.tokens.flags.writeable


def test_index_counts_by_hand(folder: Path) -> None:
    index = read_json(folder / "index.json")
    ranks = index["ranks"]
    assert [rank["samples"] for rank in ranks] == [4, 4, 3]
    # letters: a dddd ggg jj = 10; bb e hhhhh kkk = 11; ccc ff i = 6; one more each
    assert [rank["targets"] for rank in ranks] == [14, 15, 9]
    assert (index["world_size"], index["samples"], index["targets"]) == (3, 11, 38)
    assert [rank["rank"] for rank in ranks] == [0, 1, 2]
    assert first_texts(folder) == ["a", "bb", "ccc"]


@pytest.mark.parametrize("world_size", [1, 2, 5, 11])
def test_files_hold_the_samples_of_each_rank(tmp_path: Path, world_size: int) -> None:
    folder = tmp_path / "shards"
    write_shards(folder, samples_of(ELEVEN), world_size)
    index = read_json(folder / "index.json")
    assert index["samples_sha256"] == samples_of(ELEVEN).sha256()
    listed = {n: sha for rank in index["ranks"] for n, sha in rank["sha256"].items()}
    assert listed == {path.name: sha256_file(path) for path in folder.glob("rank-*")}
    for rank in range(world_size):
        assert shard_texts(open_shard(folder, rank)) == ELEVEN[rank::world_size]
    assert open_targets(folder).tolist() == [len(text) + 1 for text in ELEVEN]
    # and targets.npy and index.json, but no temporary file
    assert len(list(folder.iterdir())) == 2 * world_size + 2


def test_hash_of_samples_knows_content_and_order() -> None:
    for texts in (
        [*ELEVEN[:10], "kkl"],
        ELEVEN[:10],
        [*ELEVEN, "a"],
        ["bb", "a", *ELEVEN[2:]],
        # another boundary between samples
        ["ab", "b", *ELEVEN[2:]],
    ):
        assert samples_of(texts).sha256() != samples_of(ELEVEN).sha256()


# the shard of rank r, from the original files
FAULTS: dict[str, Callable[[list[Samples], int], Samples]] = {
    "overlapping": lambda shards, rank: shards[0],
    "altered": lambda shards, rank: Samples(
        shards[rank].tokens ^ np.uint8(rank), shards[rank].offsets
    ),
    "truncated": lambda shards, rank: Samples(
        shards[rank].tokens[:-1], shards[rank].offsets
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_shards_on_disk_that_are_not_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    read = data._map_shard

    def spoilt(folder: Path, rank: int) -> Samples:
        return FAULTS[fault]([read(folder, 0), read(folder, 1)], rank)

    monkeypatch.setattr(data, "_map_shard", spoilt)
    with pytest.raises(EvidenceError, match="the shards together are not the corpus"):
        write_shards(tmp_path / "world-2", samples_of(ELEVEN), 2)
    assert not (tmp_path / "world-2" / "index.json").exists()


# "abcdefghi" is 11 tokens, 10 targets. Blocks of 8 split it into 8 tokens (7 targets)
# and 4 (3 targets); "abcdef" is 8 tokens, just the block
def test_long_samples_are_counted() -> None:
    ours: list[tuple[LongSamples, list[int], list[str]]] = [
        ("split", [8, 4, 8, 3], ["abcdefg", "ghi", "abcdef", "x"]),
        ("cut", [8, 8, 3], ["abcdefg", "abcdef", "x"]),
    ]
    for policy, lengths, texts in ours:
        samples, num_long = tokenize_corpus(["abcdefghi", "abcdef", "x"], 8, policy)
        assert samples.lengths().tolist() == lengths
        assert samples.tokens[:4].tolist() == [255, 97, 98, 99]
        assert num_long == 1
        assert shard_texts(samples) == texts
    # é is two bytes; the first text of a rank may end within a character
    samples, _ = tokenize_corpus(["abcdefé"], 8, "cut")
    assert decode(samples[0]) == "abcdef\ufffd"
