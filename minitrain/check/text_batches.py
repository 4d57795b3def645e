"""Batches of a text, for models that follow Hugging Face's convention."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from minitrain.core.errors import UserError
from minitrain.core.files import MOST_OF_RECORDING, require_regular
from minitrain.data.batches import IGNORE_INDEX
from minitrain.model.factory import make_model
from minitrain.train.rng import seed_everything, untouched_random_state

LONGEST, SHORTEST = 64, 8
# parameters times tokens of a batch: so many products take a fraction of a second
AFFORDED = 1 << 31
# so many lengths, one after the other, where lines are cut short: of equal ones a mean
# of means would be the mean
UNEVEN = 4
STEPS = 3
# parameters of a model that takes two steps unless it is told how many: the fewest of
# which one starts from moments of the optimizer
LARGE, STEPS_OF_LARGE = 1 << 24, 2


def reading_for(factory: Any, size: int, steps: int | None) -> tuple[int, int, str]:
    """Return the steps that the model of ``factory`` takes, the bytes of a line that it
    reads, in batches of ``size`` lines, and a note on what is less than usual. What
    builds no model is for the check to refuse.
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
    """Return the bytes of a line that a model with so many ``parameters`` reads in
    batches of ``size`` lines: a step costs their product, and few tokens are enough.
    """
    longest = LONGEST
    while longest > SHORTEST and parameters * size * longest > AFFORDED:
        longest //= 2
    return longest


def text_batches(
    file: Path, size: int, count: int, longest: int = LONGEST
) -> list[dict[str, Tensor]]:
    """Return ``count`` batches of ``size`` lines of ``file``, which is read again where
    it has no more: ``input_ids`` and ``labels`` (B, T) of its bytes, at most
    ``longest`` a line, padded. Raises UserError where no line has two bytes.
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
