"""Batches of a text, for models that follow Hugging Face's convention."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from minitrain.core.errors import UserError

# a byte is a token
VOCABULARY = 256
LONGEST = 64
# a label that is no target
PADDING = -100


def text_batches(file: Path, size: int, count: int) -> list[dict[str, Tensor]]:
    """``count`` batches of ``size`` lines of ``file``, from the top again where it has
    no more: ``input_ids`` and ``labels`` (B, T) of its bytes, at most LONGEST a line,
    labels being the ids and PADDING behind the end.

    Lines of unlike length are the point: a mean of means over ranks is not the mean.
    Raises UserError where no line has two bytes.
    """
    lines = [line[:LONGEST] for line in file.read_bytes().splitlines() if len(line) > 1]
    if not lines:
        raise UserError(f"{file}: has no line of two bytes")
    numbers = range(size * count)
    dealt = [lines[number % len(lines)] for number in numbers]
    return [_batch(dealt[start : start + size]) for start in numbers[::size]]


def _batch(lines: Sequence[bytes]) -> dict[str, Tensor]:
    width = max(map(len, lines))
    ids = torch.zeros(len(lines), width, dtype=torch.long)
    labels = torch.full((len(lines), width), PADDING)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = labels[row, : len(line)] = torch.tensor(list(line))
    return {"input_ids": ids, "labels": labels}
