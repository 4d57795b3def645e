from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from samples_of_text import ELEVEN, dealt, rank_batches

from minitrain.data.batches import IGNORE_INDEX, MicroBatch, ShardFiles
from minitrain.train.step_record import ledger_entry


def everyone(
    folder: Path, world_size: int, step: int, texts: list[str] = ELEVEN
) -> list[MicroBatch]:
    """Return the batch of every rank at ``step``; four samples in total."""
    return [
        rank_batches(folder, rank, world_size, texts).micro_batches(step)[0]
        for rank in range(world_size)
    ]


def name_of(batches: list[MicroBatch]) -> str:
    return str(ledger_entry([batch.digests for batch in batches])["sha256"])


def texts_of(batch: MicroBatch) -> list[str]:
    """Return the texts of the real tokens in a batch."""
    rows = zip(batch.inputs["input_ids"], batch.inputs["labels"], strict=True)
    kept = [ids[labels != IGNORE_INDEX].tolist() for ids, labels in rows]
    return [bytes(row[1:-1]).decode() for row in kept]


def test_padding_by_hand(tmp_path: Path) -> None:
    batches = rank_batches(tmp_path, 0, 1, ["ab"], global_batch_size=1)
    (batch,) = batches.micro_batches(0)
    # one sample, block of eight: boundary a b boundary, then padding
    assert batch.inputs["input_ids"].tolist() == [[255, 97, 98, 255, 0, 0, 0, 0]]
    assert batch.inputs["labels"].tolist() == [[255, 97, 98, 255, *[-100] * 4]]
    assert (batch.num_targets, batch.global_targets) == (3, 3)
    assert {tensor.dtype for tensor in batch.inputs.values()} == {torch.int64}


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_counted_targets_are_those_in_the_labels(
    tmp_path: Path, world_size: int, step: int
) -> None:
    batches = everyone(tmp_path, world_size, step)
    for batch in batches:
        # the first token of a sample is no target
        real = int((batch.inputs["labels"][:, 1:] != IGNORE_INDEX).sum())
        assert batch.num_targets in (real, 0)
    total = sum(batch.num_targets for batch in batches)
    assert {batch.global_targets for batch in batches} == {total}
    assert {batch.step for batch in batches} == {step}


def test_every_world_size_has_the_same_global_batches(tmp_path: Path) -> None:
    """Two whole epochs and the start of a third, uneven tails included."""

    def names(world_size: int, steps: Iterable[int]) -> list[tuple[str, int]]:
        found = (everyone(tmp_path, world_size, step) for step in steps)
        return [(name_of(batches), batches[0].global_targets) for batches in found]

    one = names(1, range(7))
    assert names(2, range(7)) == names(4, range(7)) == one
    # in any order
    assert names(2, reversed(range(7))) == one[::-1]
    # no two steps of an epoch share a sample; the second epoch has a different order
    assert len({*one[:3]}) == 3
    assert one[:3] != one[3:6]


def test_rank_without_samples_still_takes_part(tmp_path: Path) -> None:
    # the third batch of an epoch has the samples of columns 0, 1, 2 only: rank 3 of
    # four, with column 3, has none
    *others, idle = everyone(tmp_path, 4, 2)
    assert all(batch.num_targets > 0 for batch in others)
    assert (idle.num_targets, idle.digests) == (0, ())
    assert idle.inputs["input_ids"].shape == (1, 8)
    # its own first sample, with a weight of 0
    assert texts_of(idle) == ["dddd"]
    assert idle.global_targets == sum(batch.num_targets for batch in others)
    # nor has the third micro-batch of rank 0 of two, which has two samples then
    parts = rank_batches(tmp_path, 0, 2, ELEVEN, num_micro_batches=3).micro_batches(2)
    assert [len(part.digests) for part in parts] == [1, 1, 0]
    assert [part.num_targets > 0 for part in parts] == [True, True, False]


def test_doubled_or_missing_sample_changes_the_name(tmp_path: Path) -> None:
    zero, one = everyone(tmp_path, 2, 0)
    clean = everyone(tmp_path, 1, 0)
    assert name_of([zero, one]) == name_of(clean)
    # rank 1 repeats the data of rank 0
    assert name_of([zero, zero]) != name_of(clean)
    assert name_of([zero, one, one]) != name_of(clean)
    assert name_of([zero]) != name_of(clean)


# equal lengths, so that only tokens differ: another text, another order
@pytest.mark.parametrize("texts", [["aa", "bb", "cc", "de"], ["bb", "aa", "cc", "dd"]])
def test_other_texts_change_the_name(tmp_path: Path, texts: list[str]) -> None:
    clean = everyone(tmp_path / "clean", 1, 0, ["aa", "bb", "cc", "dd"])
    assert name_of(clean) != name_of(everyone(tmp_path / "other", 1, 0, texts))


def test_ledger_counts_samples_and_those_that_come_twice() -> None:
    # (2^256 - 1) + 3 = 2^256 + 2
    assert ledger_entry([[2**256 - 1], [3]])["sha256"] == f"{2:064x}"
    entry = ledger_entry([[1, 2], [2, 4 << 192]])
    assert (entry["samples"], entry["repeated"]) == (4, 1)
    # the first 16 of 64 hex digits of each rank's sum
    assert entry["ranks"] == ["0" * 16, "0" * 15 + "4"]
    assert ledger_entry([[], []]) == {
        "sha256": "0" * 64,
        "samples": 0,
        "repeated": 0,
        "ranks": ["0" * 16] * 2,
    }


def test_loss_is_that_of_the_model_in_every_epoch(tmp_path: Path) -> None:
    def model(**_: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=torch.tensor(2.0))

    batches = rank_batches(tmp_path, 0, 1, ELEVEN)
    # eleven samples in batches of four: three epochs
    for step in range(9):
        (one,) = batches.micro_batches(step)
        assert batches.loss(model, one.inputs).item() == 2


def test_parts_of_a_batch_are_its_samples_in_turn(tmp_path: Path) -> None:
    (whole,) = rank_batches(tmp_path, 0, 2, ELEVEN).micro_batches(0)
    parts = rank_batches(tmp_path, 0, 2, ELEVEN, num_micro_batches=2).micro_batches(0)
    assert [part.digests for part in parts] == [whole.digests[::2], whole.digests[1::2]]
    assert {part.global_targets for part in parts} == {whole.global_targets}
    assert sum(part.num_targets for part in parts) == whole.num_targets


@pytest.mark.parametrize("num_files", [1, 2, 4])
@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_shards_of_a_process_come_in_turn(
    tmp_path: Path, num_files: int, num_micro_batches: int
) -> None:
    data = ShardFiles(dealt(tmp_path, num_files, ELEVEN), num_files, 8, 4, seed=3)
    batches = data.open([1, 3], 4, num_micro_batches)
    # files of other shards stay closed
    assert {*batches.files} == {1 % num_files, 3 % num_files}
    apart = [
        rank_batches(tmp_path, shard, 4, ELEVEN, num_micro_batches=num_micro_batches)
        for shard in (1, 3)
    ]
    assert len(batches.order) == 3
    for step in (0, 5, 2, 1):
        found = batches.micro_batches(step)
        expected = [part for one in apart for part in one.micro_batches(step)]
        in_turn = [1] * num_micro_batches + [3] * num_micro_batches
        assert [part.shard for part in found] == in_turn
        assert [part.digests for part in found] == [part.digests for part in expected]
        assert [texts_of(p) for p in found] == [texts_of(p) for p in expected]
