"""Batches of a text, for models that follow Hugging Face's convention."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from minitrain.core.errors import UserError
from minitrain.core.regular import MOST_OF_RECORDING, require_regular
from minitrain.data.batches import IGNORE_INDEX
from minitrain.model.factory import make_model
from minitrain.train.rng import seed_everything, untouched_random_state

LONGEST, SHORTEST = 64, 8
# largest product of parameters and tokens of a batch: a fraction of a second
AFFORDED = 1 << 31
# number of different lengths of lines that are cut: if all were equal, a mean of means
# would be the mean
UNEVEN = 4
STEPS = 3
# a model with more parameters takes two steps by default, the fewest with a step that
# starts from moments of the optimizer
LARGE, STEPS_OF_LARGE = 1 << 24, 2


def reading_for(factory: Any, size: int, steps: int | None) -> tuple[int, int, str]:
    """Return the number of steps, the length of a line in bytes, and a note on what is
    reduced for a large model.

    Args:
        factory: Builds the model. The check itself refuses an invalid one.
        size: Lines in a batch.
        steps: Number of steps, or None for the default.
    """
    usual = STEPS if steps is None else steps
    if isinstance(factory, nn.Module) or not callable(factory):
        return usual, LONGEST, ""
    with untouched_random_state():
        seed_everything(0)
        model = make_model(factory, "factory")
    parameters = sum(p.numel() for p in model.parameters())
    longest = length_for(parameters, size)
    less = [f"{size} lines of at most {longest} bytes"] if longest < LONGEST else []
    if steps is None and parameters > LARGE:
        usual = STEPS_OF_LARGE
        less.append(f"{usual} steps")
    millions = f": {parameters / 1e6:.0f} million parameters"
    return usual, longest, ", ".join(less) + millions if less else ""


def length_for(parameters: int, size: int) -> int:
    """Return the length of a line in bytes for a model with ``parameters`` and batches
    of ``size`` lines. A step costs their product.
    """
    longest = LONGEST
    while longest > SHORTEST and parameters * size * longest > AFFORDED:
        longest //= 2
    return longest


def text_batches(
    file: Path, size: int, count: int, longest: int = LONGEST
) -> list[dict[str, Tensor]]:
    """Return ``count`` batches of ``size`` lines of ``file``, which is repeated if it
    has fewer lines.

    Each batch has ``input_ids`` and ``labels`` (B, T): the bytes of its lines, at most
    ``longest`` per line, padded. Raises UserError if no line has two bytes.
    """
    text = require_regular(file, MOST_OF_RECORDING).read_bytes()
    lines = [line for line in text.splitlines() if len(line) > 1]
    if not lines:
        raise UserError(f"{file}: has no line of two bytes")
    numbers = range(size * count)
    uneven = UNEVEN if longest < LONGEST else 1
    dealt = [
        torch.tensor(list(lines[n % len(lines)][: longest - n % uneven]))
        for n in numbers
    ]
    batches = [dealt[start : start + size] for start in numbers[::size]]
    padded = partial(pad_sequence, batch_first=True)
    return [
        {"input_ids": padded(ids), "labels": padded(ids, padding_value=IGNORE_INDEX)}
        for ids in batches
    ]
