"""A training run from the inside of one rank: set up, train, write the evidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from minitrain.batches import RankBatches
from minitrain.clock import StepClock
from minitrain.corpus import VOCAB_SIZE
from minitrain.ddp import distributed, local_device, require_gpus
from minitrain.factory import build_model, try_model
from minitrain.files import open_atomic, write_json, write_jsonl
from minitrain.hashes import Recorder, ledger_entry, recorded_steps, save_tensors
from minitrain.params import Params
from minitrain.progress import progress
from minitrain.provenance import peak_memory_mb, provenance, require_torch
from minitrain.randomness import Stream, seed_everything
from minitrain.sync.stock import StockDDP
from minitrain.training import (
    TrainResult,
    make_optimizer,
    steps_to_train,
    train,
)


@dataclass(frozen=True)
class Job:
    """One run: its parameters, and the folders that it reads and writes."""

    params: Params
    backend: str
    world_size: int
    shards: Path
    out: Path


def rank_batches(
    params: Params,
    shards: Path,
    rank: int,
    world_size: int,
    device: torch.device | None = None,
) -> RankBatches:
    """The batches of ``rank``, as ``params`` order and pad them, on ``device``."""
    return RankBatches(
        shards,
        rank,
        world_size,
        block_size=params.model.block_size,
        global_batch_size=params.train.global_batch_size,
        seed=params.train.seed,
        device=device,
    )


def start_model(params: Params, rank: int) -> nn.Module:
    """The model as ``rank`` starts it, from the rank's own seed."""
    seed_everything(params.train.seed + rank)
    return build_model(params.model, VOCAB_SIZE)


def start_streams(params: Params, world_size: int) -> list[Stream]:
    """The random numbers of each rank from the first step on."""
    streams = []
    for rank in range(world_size):
        start_model(params, rank)
        streams.append(Stream())
    return streams


def preflight(job: Job) -> None:
    """Find what a user can get wrong before any process is launched (UserError)."""
    require_torch(job.params.environment.torch)
    if job.backend == "nccl":
        require_gpus(job.world_size)
    torch.set_num_threads(job.params.train.threads_per_process)
    batches = rank_batches(job.params, job.shards, 0, job.world_size)
    steps_to_train(job.params.train, len(batches.order))
    try_model(start_model(job.params, 0), batches.batch(0))


def train_rank(job: Job, launcher: str) -> None:
    """Be one rank of ``job``, from joining the others to writing the evidence."""
    params = job.params.train
    torch.set_num_threads(params.threads_per_process)
    limit = job.params.launch.timeout_s
    with distributed(job.backend, timeout_s=limit) as (rank, world_size):
        device = local_device(job.backend)
        model = start_model(job.params, rank).to(device)
        batches = rank_batches(job.params, job.shards, rank, world_size, device)
        num_steps = steps_to_train(params, len(batches.order))
        title = f"{job.backend}-{world_size}"
        sync = StockDDP(model, timed=True)
        result = train(
            model,
            sync,
            batches,
            make_optimizer(model, params),
            progress(range(num_steps), title, total=num_steps, show=rank == 0),
            Recorder(model, recorded_steps(num_steps, params.hash_every)),
            StepClock(_synchronizer(device)),
        )
        sync.finish()
        states = job.out / "states"
        save_tensors(states / f"state-rank-{rank}.pt", model.state_dict())
        facts = {
            "launcher": launcher,
            "backend": job.backend,
            "world_size": world_size,
            "threads_per_process": params.threads_per_process,
            "num_steps": num_steps,
            "model_params": sum(p.numel() for p in model.parameters()),
        }
        _write_together(job.out, result, facts, device)


def _synchronizer(device: torch.device) -> Any:
    return torch.cuda.synchronize if device.type == "cuda" else (lambda: None)


def _write_together(
    out: Path, result: TrainResult, facts: dict[str, Any], device: torch.device
) -> None:
    """Gather what every rank knows; rank 0 writes it."""
    mine = (result, peak_memory_mb())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(mine, everyone if dist.get_rank() == 0 else None)
    if dist.get_rank() != 0:
        return
    results = [one for one, _ in everyone]
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    write_losses(out / "losses.csv", results)
    write_hashes(out / "hashes.jsonl", results)
    for name, tensors in result.kept.items():
        save_tensors(out / f"{name}.pt", tensors)
    timings = [
        {**row, "rank": r} for r, one in enumerate(results) for row in one.timings
    ]
    write_jsonl(out / "timings.jsonl", timings)
    peaks = [peak for _, peak in everyone]
    write_json(
        out / "provenance.json", {**facts, "peak_memory_mb": peaks, **provenance(gpu)}
    )


def write_losses(path: Path, results: list[TrainResult]) -> None:
    """Write ``step`` and the ``loss`` over all ranks: the sum of their shares."""
    shares = zip(*(result.losses for result in results), strict=True)
    losses = [sum(share) for share in shares]
    with open_atomic(path) as file:
        frame = pd.DataFrame({"step": range(len(losses)), "loss": losses})
        frame.to_csv(file, index=False)


def write_hashes(path: Path, results: list[TrainResult]) -> None:
    """Write the rows of all ranks, and the data ledger."""
    write_jsonl(path, rows_of(results))


def rows_of(results: list[TrainResult]) -> list[dict[str, Any]]:
    """The data ledger (a row for every step's global batch), then each rank's rows."""
    by_step = zip(*(result.digests for result in results), strict=True)
    batches = [
        {"kind": "batch", "step": step, **ledger_entry(digests)}
        for step, digests in enumerate(by_step)
    ]
    tensors = [
        {"rank": r, **row} for r, one in enumerate(results) for row in one.hashes
    ]
    return batches + tensors
