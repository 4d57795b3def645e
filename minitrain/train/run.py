"""A training run from the inside of one rank: set up, train, write the evidence."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from minitrain.core.files import open_atomic, write_json, write_jsonl
from minitrain.core.params import Params, Train
from minitrain.core.progress import progress
from minitrain.core.provenance import (
    bits_depend_on,
    peak_memory_mb,
    provenance,
    require_torch,
)
from minitrain.data.batches import JoinedBatches, ShardBatches
from minitrain.data.text import VOCAB_SIZE
from minitrain.distributed.groups import distributed, local_device, require_gpus
from minitrain.model.factory import build_model, try_model
from minitrain.sync.catalog import find_strategy
from minitrain.sync.invariant import shards_of
from minitrain.sync.strategy import Strategy
from minitrain.train.clock import StepClock, always_plain, kind_of_step
from minitrain.train.loop import (
    OPTIMIZERS,
    TrainResult,
    mean_loss,
    mean_losses,
    steps_to_train,
    train,
)
from minitrain.train.precision import make_precision
from minitrain.train.probe import add_probes, unwatched_gradients
from minitrain.train.recorder import (
    Recorder,
    ledger_entry,
    recorded_steps,
    sampled_steps,
    save_tensors,
)
from minitrain.train.rng import Stream, seed_everything


@dataclass(frozen=True)
class Job:
    """One run: its parameters, the folders that it reads and writes, its script."""

    params: Params
    backend: str
    world_size: int
    shards: Path
    out: Path
    script: Path


def num_shards(params: Params, world_size: int) -> int:
    """Into how many shards the strategy of ``params`` cuts a batch of that many."""
    strategy = find_strategy(params.train.sync)
    return strategy.num_shards(world_size, params.train)


def shard_batches(
    params: Params,
    folder: Path,
    world_size: int,
    device: torch.device | None = None,
) -> list[ShardBatches]:
    """The batches of every shard, read from the files of ``world_size`` ranks."""
    count = num_shards(params, world_size)
    return [
        ShardBatches(
            folder,
            shard,
            count,
            block_size=params.model.block_size,
            global_batch_size=params.train.global_batch_size,
            seed=params.train.seed,
            num_files=world_size,
            num_parts=params.train.grad_accumulation_steps,
            device=device,
        )
        for shard in range(count)
    ]


def rank_batches(
    params: Params,
    folder: Path,
    rank: int,
    world_size: int,
    device: torch.device | None = None,
) -> JoinedBatches:
    """The batches of ``rank``, as ``params`` order, cut and pad them, on ``device``."""
    shards = shard_batches(params, folder, world_size, device)
    mine = shards_of(rank, world_size, len(shards))
    return JoinedBatches([shards[shard] for shard in mine])


def start_model(params: Params, rank: int) -> nn.Module:
    """The model as ``rank`` (or shard) starts it, from a seed of its own."""
    seed_everything(params.train.seed + rank)
    return build_model(params.model, VOCAB_SIZE)


def optimizer_of(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """``train.optimizer`` at ``train.learning_rate``, the rest as torch has it."""
    return Strategy(model, train).optimizer(
        OPTIMIZERS[train.optimizer], train.learning_rate
    )


def start_streams(params: Params, count: int) -> list[Stream]:
    """The random numbers of each of ``count`` shards from the first step on."""
    streams = []
    for shard in range(count):
        start_model(params, shard)
        streams.append(Stream())
    return streams


def preflight(job: Job) -> None:
    """Find what a user can get wrong before any process is launched (UserError)."""
    require_torch(job.params.environment.torch)
    if job.backend == "nccl":
        require_gpus(job.world_size)
    torch.set_num_threads(job.params.train.threads_per_process)
    first = shard_batches(job.params, job.shards, job.world_size)[0]
    steps_to_train(job.params.train, len(first.order))
    train = job.params.train
    precision = make_precision(train.precision)
    with precision.autocast():
        try_model(
            start_model(job.params, 0),
            first.parts(0)[0],
            may_leave_unused=train.find_unused_parameters,
        )


def train_rank(job: Job, launcher: str) -> None:
    """Be one rank of ``job``, from joining the others to writing the evidence."""
    params = job.params.train
    torch.set_num_threads(params.threads_per_process)
    limit = job.params.launch.timeout_s
    with distributed(job.backend, timeout_s=limit) as (rank, world_size):
        device = local_device(job.backend)
        batches = rank_batches(job.params, job.shards, rank, world_size, device)
        num_steps = steps_to_train(params, batches.steps_per_epoch)
        title = f"{job.backend}-{world_size}"
        streams = rank_streams(job.params, rank, world_size)
        strategy = find_strategy(params.sync)
        unwatched = unwatched_gradients(
            lambda: start_model(job.params, rank).to(device),
            strategy,
            params,
            batches,
            make_precision(params.precision, device.type),
        )
        model = start_model(job.params, rank).to(device)
        sync = strategy(model, params)
        recorded = recorded_steps(num_steps, params.hash_every)
        precision = make_precision(params.precision, device.type)
        kinds = kind_of_step if sync.has_account else always_plain
        result = train(
            sync,
            batches,
            sync.optimizer(OPTIMIZERS[params.optimizer], params.learning_rate),
            progress(range(num_steps), title, total=num_steps, show=rank == 0),
            Recorder(model, recorded, sampled_steps(recorded)),
            StepClock(_synchronizer(device), kinds),
            precision,
            streams,
        )
        sync.finish()
        states = job.out / "states"
        save_tensors(states / f"state-rank-{rank}.pt", sync.state_dict())
        add_probes(result, sync, batches, num_steps - 1, precision, streams)
        result.hashes += [unwatched] if unwatched else []
        sync.close()
        facts = {
            "launcher": launcher,
            "backend": job.backend,
            "world_size": world_size,
            "threads_per_process": params.threads_per_process,
            "num_steps": num_steps,
            "sync": params.sync,
            "model_params": sum(p.numel() for p in model.parameters()),
        }
        _write_together(job, result, facts, device)


def rank_streams(
    params: Params, rank: int, world_size: int
) -> dict[int, Stream] | None:
    """The random numbers of each shard of ``rank``; None: the process's own will do."""
    count = num_shards(params, world_size)
    if count == world_size:
        return None
    streams = start_streams(params, count)
    return {shard: streams[shard] for shard in shards_of(rank, world_size, count)}


def _synchronizer(device: torch.device) -> Any:
    return torch.cuda.synchronize if device.type == "cuda" else (lambda: None)


def _write_together(
    job: Job, result: TrainResult, facts: dict[str, Any], device: torch.device
) -> None:
    """Gather what every rank knows; rank 0 writes it."""
    kept, peak = result.kept, peak_memory_mb()
    # tensors are many times the model, and the same everywhere, as their hashes say
    mine = (replace(result, kept={}), peak)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(mine, everyone if dist.get_rank() == 0 else None)
    if dist.get_rank() != 0:
        return
    results = [one for one, _ in everyone]
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    out = job.out
    write_losses(out / "losses.csv", results)
    write_hashes(out / "hashes.jsonl", results)
    for name, tensors in kept.items():
        save_tensors(out / f"{name}.pt", tensors)
    timings = [
        {**row, "rank": r} for r, one in enumerate(results) for row in one.timings
    ]
    write_jsonl(out / "timings.jsonl", timings)
    peaks = [peak for _, peak in everyone]
    origin = provenance(job.script, gpu)
    write_json(out / "provenance.json", {**facts, "peak_memory_mb": peaks, **origin})
    threads = job.params.train.threads_per_process
    write_json(out / "machine.json", bits_depend_on(threads))


def write_losses(path: Path, results: list[TrainResult]) -> None:
    """Write ``step`` and the ``loss`` over all ranks."""
    losses = mean_losses(results)
    with open_atomic(path) as file:
        frame = pd.DataFrame({"step": range(len(losses)), "loss": losses})
        frame.to_csv(file, index=False)


def write_hashes(path: Path, results: list[TrainResult]) -> None:
    """Write the rows of all ranks, and the data ledger."""
    write_jsonl(path, rows_of(results))


def rows_of(results: list[TrainResult]) -> list[dict[str, Any]]:
    """The data ledger (a row for every step's global batch), then each rank's rows and
    the losses of the probes.
    """
    by_step = zip(*(result.digests for result in results), strict=True)
    batches = [
        {"kind": "batch", "step": step, **ledger_entry(digests)}
        for step, digests in enumerate(by_step)
    ]
    tensors = [
        {"rank": r, **row} for r, one in enumerate(results) for row in one.hashes
    ]
    last = len(results[0].losses) - 1
    probes = [
        {"kind": "probe", "name": name, "step": last, "loss": mean_loss(shares)}
        for name in results[0].probes
        for shares in [[result.probes[name] for result in results]]
    ]
    return batches + tensors + probes
