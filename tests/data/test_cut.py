from collections import namedtuple
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.data.cut import (
    InMemory,
    bytes_of,
    content_digest,
    count_targets,
    cut,
    tensors_of,
)

Pair = namedtuple("Pair", ["x", "y"])


def test_every_second_sample_from_the_first_or_the_second_on() -> None:
    batch = torch.arange(5)
    assert cut(batch, 0, 2).tolist() == [0, 2, 4]
    assert cut(batch, 1, 2).tolist() == [1, 3]


def test_structure_is_kept() -> None:
    batch = {"pair": Pair(torch.arange(4), [torch.arange(4) + 10]), "name": "a"}
    mine: Any = cut(batch, 1, 2)
    assert isinstance(mine["pair"], Pair)
    assert [tensor.tolist() for tensor in tensors_of(mine)] == [[1, 3], [11, 13]]
    assert mine["name"] == "a"


def test_targets_are_labels_after_the_first_of_each_row() -> None:
    labels = torch.tensor([[7, 8, -100], [-100, -100, 9]])
    assert count_targets({"labels": labels}) == 2
    # without labels each sample is one target
    assert count_targets((torch.zeros(3, 2), torch.zeros(3))) == 3


def test_bytes_lie_row_after_row_for_any_stride() -> None:
    transposed = torch.tensor([[1, 3], [2, 4]], dtype=torch.uint8).T
    strided = torch.arange(9, dtype=torch.uint8)[1::2]
    assert bytes(bytes_of(transposed)) == b"\x01\x02\x03\x04"
    assert bytes(bytes_of(strided)) == b"\x01\x03\x05\x07"
    assert bytes(bytes_of(strided[3:])) == b"\x07"


def test_digest_is_that_of_all_bytes_of_a_sample() -> None:
    sample = (torch.tensor([1], dtype=torch.uint8), torch.tensor(2, dtype=torch.uint8))
    expected = int.from_bytes(sha256(b"\x01\x02").digest())
    assert content_digest(sample) == expected


def mean(model: nn.Module, inputs: Tensor) -> Tensor:
    return inputs.float().mean()


def test_parts_of_two_shards_hold_the_global_batch_once() -> None:
    batches = [torch.arange(8), torch.arange(8) + 100]
    cut_in_four = InMemory(batches, mean, len).open([0, 1], 2, 2)
    parts = cut_in_four.micro_batches(0)
    # shard 0 has 0 2 4 6, and its first micro-batch 0 and 4
    assert [part.inputs.tolist() for part in parts] == [[0, 4], [2, 6], [1, 5], [3, 7]]
    assert [part.shard for part in parts] == [0, 0, 1, 1]
    assert {(part.num_targets, part.global_targets) for part in parts} == {(2, 8)}
    assert len({digest for part in parts for digest in part.digests}) == 8
    # the third step starts from the first batch
    assert cut_in_four.micro_batches(2)[0].inputs.tolist() == [0, 4]
    assert cut_in_four.micro_batches(3)[0].inputs.tolist() == [100, 104]
    assert cut_in_four.loss(nn.Identity(), torch.tensor([1, 2])).item() == 1.5
