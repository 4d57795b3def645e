"""What the ranks of a run write down together, and what a replay writes alike."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.core.files import open_atomic, write_json, write_jsonl
from minitrain.core.provenance import bits_depend_on, peak_memory_mb, provenance
from minitrain.train.recorder import save_tensors
from minitrain.train.result import TrainResult, mean_losses, rows_of


def write_run(
    out: Path,
    result: TrainResult,
    facts: dict[str, Any],
    script: Path,
    device: torch.device,
) -> None:
    """Gather what every rank knows; rank 0 writes it to the folder ``out``. Call it on
    all ranks.

    ``facts`` stand in its provenance, of ``script``; they hold threads_per_process.
    """
    peak = peak_memory_mb()
    # tensors are many times the model, and the same everywhere, as their hashes say
    mine = (replace(result, sampled={}), peak)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(mine, everyone if dist.get_rank() == 0 else None)
    if dist.get_rank() != 0:
        return
    results = [one for one, _ in everyone]
    write_records(out, results, facts["threads_per_process"])
    save_tensors(out / "sampled.pt", result.sampled)
    timings = [
        {**row, "rank": r} for r, one in enumerate(results) for row in one.timings
    ]
    write_jsonl(out / "timings.jsonl", timings)
    peaks = [peak for _, peak in everyone]
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    origin = provenance(script, gpu)
    write_json(out / "provenance.json", {**facts, "peak_memory_mb": peaks, **origin})


def write_records(out: Path, results: Sequence[TrainResult], threads: int) -> None:
    """Write what is the same whenever it is computed: the ``loss`` over all ranks of
    every ``step``, the rows of hashes, and what their bits depend on.
    """
    losses = mean_losses(results)
    with open_atomic(out / "losses.csv") as file:
        # every rank would import pandas before it could begin, for these two columns
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows([("step", "loss"), *enumerate(losses)])
    write_jsonl(out / "hashes.jsonl", rows_of(results))
    write_json(out / "machine.json", bits_depend_on(threads))
