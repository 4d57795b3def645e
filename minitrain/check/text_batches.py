"""Batches of a text, for models that follow Hugging Face's convention."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from minitrain.core.errors import UserError
from minitrain.core.regular import MOST_OF_RECORDING, require_regular

# a byte is a token
VOCABULARY = 256
LONGEST, SHORTEST = 64, 8
# parameters times tokens of a batch: so many products take a fraction of a second
AFFORDED = 1 << 31
# so many lengths, one after the other, where lines are cut short
UNEVEN = 4
# a label that is no target
PADDING = -100


def length_for(parameters: int, size: int) -> int:
    """At most how many bytes of a line a model with so many ``parameters`` reads, in
    batches of ``size`` lines. What a step costs is their product, on any machine, and
    no rung asks for more than a few tokens.
    """
    longest = LONGEST
    while longest > SHORTEST and parameters * size * longest > AFFORDED:
        longest //= 2
    return longest


def text_batches(
    file: Path, size: int, count: int, longest: int = LONGEST
) -> list[dict[str, Tensor]]:
    """``count`` batches of ``size`` lines of ``file``, from the top again where it has
    no more: ``input_ids`` and ``labels`` (B, T) of its bytes, at most ``longest`` a
    line, labels being the ids and PADDING behind the end.

    Lines of unlike length are the point: a mean of means over ranks is not the mean.
    Where most lines are cut, they are therefore cut to unlike lengths.
    Raises UserError where no line has two bytes.
    """
    lines = [
        line[:LONGEST]
        for line in require_regular(file, MOST_OF_RECORDING).read_bytes().splitlines()
        if len(line) > 1
    ]
    if not lines:
        raise UserError(f"{file}: has no line of two bytes")
    numbers = range(size * count)
    uneven = UNEVEN if longest < LONGEST else 1
    dealt = [lines[n % len(lines)][: longest - n % uneven] for n in numbers]
    return [_batch(dealt[start : start + size]) for start in numbers[::size]]


def _batch(lines: Sequence[bytes]) -> dict[str, Tensor]:
    width = max(map(len, lines))
    ids = torch.zeros(len(lines), width, dtype=torch.long)
    labels = torch.full((len(lines), width), PADDING)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = labels[row, : len(line)] = torch.tensor(list(line))
    return {"input_ids": ids, "labels": labels}
