"""Recordings whose samples have other hashes: padded rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import alter, record
from torch import Tensor, tensor

from minitrain.compare.align import same_samples
from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.recording.inputs import sample_digests

Change = Callable[[dict[str, Any]], None]


def rows_read(*rows: list[int], labels: bool = False) -> dict[int, dict[str, Any]]:
    """As the recorder writes rows of token ids, with 9 as the padding."""
    longest = max(map(len, rows))
    ids = tensor([[*row, *[9] * (longest - len(row))] for row in rows])
    more = [torch.where(ids == 9, -100, ids)] if labels else []
    digests, _, unpadded = sample_digests([ids, *more])
    return {0: {"inputs": [digests], "unpadded": [unpadded]}}


@pytest.mark.parametrize("labels", [False, True])
def test_rows_are_the_same_whatever_their_padding(labels: bool) -> None:
    short, middle, long = [1, 2], [3, 4, 4, 5], [6, 7, 8, 1, 2, 3, 3]
    whole = rows_read(short, middle, long, labels=labels)
    for parts in (([short, middle], [long]), ([short], [middle, long])):
        dealt = {n: rows_read(*p, labels=labels)[0] for n, p in enumerate(parts)}
        assert same_samples(whole, dealt)
        assert not same_samples(whole, {0: dealt[0]})
    for other in ([3, 4, 4, 6], [3, 4, 4], [3, 5, 4, 5]):
        assert not same_samples(whole, rows_read(short, other, long, labels=labels))


def compared(a: Path, b: Path, change: Change) -> RecordingsCompared:
    for rank in (0, 1):
        alter(b, rank, change)
    return compare_recordings(a, b)


def test_a_pattern_in_the_gradients_comes_before_the_data(tmp_path: Path) -> None:
    """Rows that hash otherwise are no other data where gradients are twice as large;
    where no combination of gradients explains them they are.
    """

    def smooth(found: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(found, targets, label_smoothing=0.5)

    def double(found: Tensor, targets: Tensor) -> Tensor:
        return 2 * torch.nn.functional.cross_entropy(found, targets)

    def pad(row: dict[str, Any]) -> None:
        row["inputs"] = [[f"{digest[:15]}x" for digest in row["inputs"][0]]]

    a = record(tmp_path / "a", steps=3, world_size=2)
    for name, loss, what in (("b", double, "gradients"), ("c", smooth, "data")):
        b = record(tmp_path / name, steps=3, world_size=2, loss=loss)
        first = compared(a, b, pad).first
        assert first
        assert first.sure
        assert first.what in (what, f"own {what}")
