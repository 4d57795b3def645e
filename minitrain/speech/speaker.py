"""Texts drawn from a language model, token by token, with the same dice every time.

Two models whose chances are equal say the same. So do two that differ by rounding, but
for a draw that falls within that rounding.
"""

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.core.progress import progress
from minitrain.data.text import BOUNDARY, VOCAB_SIZE
from minitrain.train.rng import untouched_random_state

NUM_TEXTS = 3
# tokens, the boundary that each text starts with included: about a line
LONGEST = 64
# below 1, what is likely is drawn more often than the model says: there is less noise
TEMPERATURE = 0.7
END = BOUNDARY[0]


class Mute(Exception):
    """A model from which no text can be drawn: the reason, as a clause."""


def speak(
    model: nn.Module, *, block_size: int, seed: int, show: str = ""
) -> list[bytes]:
    """NUM_TEXTS texts, each from the start of a sample to its end, or LONGEST tokens.

    ``model(input_ids=..., labels=...)`` gets two equal int64 tensors (NUM_TEXTS,
    ``block_size``) and must return an object with ``logits`` (NUM_TEXTS,
    ``block_size``, VOCAB_SIZE), of which those at position t are of token t + 1. It is
    left in eval mode; the generators of the process are left alone. ``show`` names a
    progress bar. Raises Mute for a model that does not do so.
    """
    model.eval()
    # as long as the samples that it was trained on; what is not yet drawn is padding,
    # which a causal model does not see
    ids = torch.zeros(NUM_TEXTS, block_size, dtype=torch.int64)
    ids[:, 0] = END
    places = range(1, min(LONGEST, block_size))
    with untouched_random_state(), torch.no_grad():
        # not a generator of our own: a model that draws in eval mode repeats itself too
        torch.manual_seed(seed)
        for place in progress(places, show, show=bool(show)):
            logits = _logits(model, ids)[:, place - 1]
            chances = torch.softmax(logits.double() / TEMPERATURE, dim=-1)
            if not chances.isfinite().all():
                raise Mute("its logits are not finite")
            ids[:, place] = torch.multinomial(chances, 1)[:, 0]
    return [_until_end(row[1 : len(places) + 1]) for row in ids.tolist()]


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    try:
        output: Any = model(input_ids=ids, labels=ids)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise Mute(f"it fails in eval mode ({said[:100]})") from error
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise Mute("its output has no logits")
    if logits.shape != (*ids.shape, VOCAB_SIZE):
        shape = tuple(logits.shape)
        raise Mute(f"its logits have shape {shape}, not (B, T, {VOCAB_SIZE})")
    return logits


def _until_end(tokens: list[int]) -> bytes:
    return bytes(tokens).partition(BOUNDARY)[0]
