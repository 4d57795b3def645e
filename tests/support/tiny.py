"""A small training run."""

from dataclasses import replace
from pathlib import Path

import torch
from project import PARAMS_FILE, ROOT
from waiting import GENEROUS_S

from minitrain.comm.groups import distributed
from minitrain.core.params import Params, load_params
from minitrain.data.shards import Samples, write_shards
from minitrain.data.text import tokenize
from minitrain.harness.launcher import launch
from minitrain.proof.evidence import Evidence, evidence_of
from minitrain.train.config import RunConfig, config_of
from minitrain.train.observer import watches_parts
from minitrain.train.run import run_rank
from minitrain.train.step_record import TrainResult

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
    """``params`` with another model."""
    model = params.model.model_copy(update={"factory": factory})
    return params.model_copy(update={"model": model})


def tiny_samples(count: int = 50) -> Samples:
    """Samples of unequal lengths, 2 to 15 tokens."""
    texts = [tokenize("x" * (1 + 5 * i % 13) + chr(97 + i % 26)) for i in range(count)]
    lengths = [len(text) for text in texts]
    tokens = torch.tensor(list(b"".join(texts)), dtype=torch.uint8).numpy()
    offsets = torch.tensor([0, *lengths]).cumsum(0).numpy()
    return Samples(tokens, offsets)


def tiny_shards(folder: Path, *world_sizes: int) -> Path:
    """A folder with a world-W for each of ``world_sizes``."""
    for world_size in world_sizes:
        write_shards(folder / f"world-{world_size}", tiny_samples(), world_size)
    return folder


def tiny_config(params: Params, shards: Path, world_size: int) -> RunConfig:
    """Return the run described by ``params``, with every step recorded."""
    folder = shards / f"world-{world_size}"
    return replace(config_of(params, folder, world_size), hash_every=1)


def train_tiny(params: Params, shards: Path, world_size: int) -> Evidence:
    """Train with ``world_size`` gloo ranks."""
    config = tiny_config(params, shards, world_size)
    finished = launch(_be_a_rank, world_size, config, timeout_s=GENEROUS_S)
    return evidence_of(finished, [one.state for one in finished])


def _be_a_rank(config: RunConfig) -> TrainResult:
    torch.set_num_threads(1)
    with distributed():
        return run_rank(config, observer=watches_parts)
