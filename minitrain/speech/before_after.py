"""The same model before and after training, with the same dice."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.core.files import reading
from minitrain.core.params import Params
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.factory import build_model
from minitrain.speech.speaker import TEMPERATURE, Mute, speak
from minitrain.train.rng import seed_everything

# what stands for bytes that are no text, and characters that cannot be shown
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def start_model(params: Params) -> nn.Module:
    """The model as rank 0 of a run starts it; it moves the process's generators."""
    seed_everything(params.train.seed)
    return build_model(params.model, VOCAB_SIZE)


def before_and_after(params: Params, states: Mapping[str, Path]) -> dict[str, Any]:
    """What metrics/samples.json holds: texts drawn before training, and ``after`` it
    those of each run, by its final state in the file that ``states`` names.

    ``same_texts``: whether all runs say the same, to the byte; None for a single one,
    and for a model that cannot be sampled, where ``mute`` says why. Raises UserError
    for a state that cannot be loaded.
    """
    facts: dict[str, Any] = {"seed": params.train.seed, "temperature": TEMPERATURE}
    model = start_model(params)
    block_size, seed = params.model.block_size, params.train.seed
    say = partial(speak, model, block_size=block_size, seed=seed)
    after: dict[str, list[bytes]] = {}
    try:
        before = say(show="before training")
        for run, state in states.items():
            _load(model, state)
            after[run] = say(show=run)
    except Mute as why:
        facts |= {"mute": str(why), "before": [], "after": {}}
        return {**facts, "same_texts": None}
    said = [*after.values()]
    return {
        **facts,
        "mute": None,
        "before": [*map(readable, before)],
        "after": {run: [*map(readable, texts)] for run, texts in after.items()},
        "same_texts": all(texts == said[0] for texts in said) if said[1:] else None,
    }


def readable(text: bytes) -> str:
    """``text`` as one line: what is no UTF-8, and what does not print, is replaced."""
    letters = text.decode("utf-8", errors="replace")
    return "".join(one if one.isprintable() else UNREADABLE for one in letters)


def _load(model: nn.Module, path: Path) -> None:
    state: dict[str, Tensor]
    with reading(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state)
