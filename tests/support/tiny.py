"""A small training run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from project import PARAMS_FILE, ROOT

from minitrain.core.params import Params, load_params
from minitrain.data.shards import Samples, write_shards
from minitrain.data.text import tokenize
from minitrain.train.config import RunConfig, config_of

NUM_STEPS = 6


def tiny_params(**changes: object) -> Params:
    """Parameters with a tiny model; ``changes`` go to the ``train`` section."""
    params = load_params(PARAMS_FILE)
    model = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16}
    train_ = {"num_steps": NUM_STEPS, "num_warmup_steps": 1, "global_batch_size": 12}
    return params.model_copy(
        update={
            "model": params.model.model_copy(
                update={**model, "file": str(ROOT / params.model.file)}
            ),
            "train": params.train.model_copy(update={**train_, **changes}),
        }
    )


def with_factory(params: Params, factory: str) -> Params:
    model = params.model.model_copy(update={"factory": factory})
    return params.model_copy(update={"model": model})


def tiny_samples(count: int = 50) -> Samples:
    """Samples of unequal lengths, 2 to 15 tokens."""
    texts = [tokenize("x" * (1 + 5 * i % 13) + chr(97 + i % 26)) for i in range(count)]
    tokens = np.array(list(b"".join(texts)), np.uint8)
    return Samples(tokens, np.cumsum([0, *map(len, texts)]))


def tiny_shards(folder: Path, *world_sizes: int) -> Path:
    for world_size in world_sizes:
        write_shards(folder / f"world-{world_size}", tiny_samples(), world_size)
    return folder


def tiny_config(params: Params, shards: Path, world_size: int) -> RunConfig:
    """Return the run described by ``params``, with every step recorded."""
    folder = shards / f"world-{world_size}"
    return replace(config_of(params, folder, world_size), hash_every=1)
