"""A training run small enough for a test, whole or with a fault planted in it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from project import ROOT
from torch import Tensor

from minitrain.core.files import read_jsonl
from minitrain.core.params import Params, load_params
from minitrain.data.batches import JoinedBatches
from minitrain.data.shards import Samples, write_shards
from minitrain.data.text import tokenize
from minitrain.distributed.launcher import launch
from minitrain.proof.replay import BucketLayout, replay
from minitrain.sync.stock import StockDDP
from minitrain.sync.strategy import Strategy
from minitrain.train.clock import Row, StepClock
from minitrain.train.loop import TrainResult, train
from minitrain.train.recorder import Recorder
from minitrain.train.run import (
    optimizer_of,
    rank_batches,
    start_model,
    start_streams,
    write_hashes,
)

NUM_STEPS = 6
Fault = Callable[[int, StockDDP, JoinedBatches], None]


@dataclass
class Outcome:
    """What a run left: per rank its result and final state, and its rows together."""

    results: list[TrainResult]
    states: list[dict[str, Tensor]]
    rows: list[Row]


def tiny_params(**changes: object) -> Params:
    """params.yaml with a tiny model; ``changes`` go to the ``train`` section."""
    params = load_params(ROOT / "params.yaml")
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


def train_tiny(
    params: Params, shards: Path, world_size: int, fault: Fault | None = None
) -> Outcome:
    """Train with ``world_size`` gloo ranks; ``fault`` spoils each before it starts."""
    folder = shards / f"world-{world_size}"
    answers = launch(_be_a_rank, world_size, params, folder, fault, timeout_s=60)
    return _outcome(folder, [one for one, _ in answers], [s for _, s in answers])


def _be_a_rank(
    params: Params, folder: Path, fault: Fault | None
) -> tuple[TrainResult, dict[str, Tensor]]:
    from minitrain.distributed.groups import distributed

    torch.set_num_threads(1)
    with distributed() as (rank, world_size):
        model = start_model(params, rank)
        sync = StockDDP(model, params.train)
        batches = rank_batches(params, folder, rank, world_size)
        if fault is not None:
            fault(rank, sync, batches)
        recorder = Recorder(model, range(NUM_STEPS))
        optimizer = optimizer_of(model, params.train)
        steps = range(NUM_STEPS)
        result = train(sync, batches, optimizer, steps, recorder, StepClock())
        sync.finish()
        return result, model.state_dict()


def replay_tiny(
    params: Params,
    shards: Path,
    run: Outcome,
    world_size: int,
    fault: Fault | None = None,
) -> Outcome:
    """The one-process replay of ``run``; ``fault`` spoils the batches of each rank."""
    folder = shards / f"world-{world_size}"
    streams = start_streams(params, world_size)
    model = start_model(params, 0)
    ranks = [rank_batches(params, folder, r, world_size) for r in range(world_size)]
    for rank, batches in enumerate(ranks):
        if fault is not None:
            fault(rank, StockDDP.__new__(StockDDP), batches)
    recorder = Recorder(model, range(NUM_STEPS))
    layout = BucketLayout(run.rows, model)
    steps = range(NUM_STEPS)
    optimizer = optimizer_of(model, params.train)
    count = len(ranks)
    results = replay(
        model, ranks, layout, optimizer, steps, recorder, streams, StockDDP, count
    )
    return _outcome(folder, results, [model.state_dict()])


def one_process_tiny(params: Params, shards: Path) -> Outcome:
    """The whole batch in this process, with the loop that the ranks run."""
    folder = shards / "world-1"
    model = start_model(params, 0)
    recorder = Recorder(model, range(NUM_STEPS))
    clock = StepClock(kind_of_step=lambda step: "plain")
    result = train(
        Strategy(model, params.train),
        rank_batches(params, folder, 0, 1),
        optimizer_of(model, params.train),
        range(NUM_STEPS),
        recorder,
        clock,
    )
    return _outcome(folder, [result], [model.state_dict()])


def _outcome(
    folder: Path, results: list[TrainResult], states: list[dict[str, Tensor]]
) -> Outcome:
    path = folder / "hashes.jsonl"
    write_hashes(path, results)
    return Outcome(results, states, read_jsonl(path))
