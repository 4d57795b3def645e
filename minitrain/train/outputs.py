"""Output files of a run and its replay: states, losses, hashes, times, provenance."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.collective_calls import only_first, who_sees
from minitrain.comm.groups import host_number, num_hosts
from minitrain.comm.heartbeat import my_heartbeat
from minitrain.core.files import open_atomic, write_json, write_jsonl
from minitrain.core.provenance import (
    bits_depend_on,
    machine,
    peak_memory_mb,
    provenance,
)
from minitrain.train.step_record import (
    TrainResult,
    mean_losses,
    rows_of,
    save_tensors,
)


def write_state(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write the final ``state`` of each rank to ``folder`` on rank 0's host, in
    state-rank-R.pt. Collective.
    """
    only_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    rank, sees = dist.get_rank(), who_sees(folder)
    name = "state-rank-{}.pt".format
    if sees[rank]:
        save_tensors(folder / name(rank), state)
    for other in (other for other, near in enumerate(sees) if not near):
        if rank == other:
            sent: list[Any] = [{key: tensor.cpu() for key, tensor in state.items()}]
            dist.send_object_list(sent, dst=0)
        elif rank == 0:
            sent = [None]
            dist.recv_object_list(sent, src=other)
            save_tensors(folder / name(other), sent[0])


def write_run(
    out: Path,
    result: TrainResult,
    facts: dict[str, Any],
    script: Path,
    device: torch.device,
) -> None:
    """Gather the results of all ranks on rank 0, which writes them to the folder
    ``out``, with ``facts`` and the code of ``script`` in provenance.json. Collective;
    errors are raised on all ranks.
    """
    peak = peak_memory_mb()
    # without sampled tensors: they are large, and equal on all ranks by their hashes
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    mine = (replace(result, sampled={}), peak, (host_number(), machine(gpu)))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(mine, everyone if dist.get_rank() == 0 else None)

    def write() -> None:
        results, peaks, on_hosts = zip(*everyone, strict=True)
        machines = [found for _, found in sorted(dict(on_hosts).items())]
        # name all different CPUs: no single machine repeats these bits
        cpu = " and ".join(sorted({found["cpu"] for found in machines}))
        write_records(out, results, facts["threads_per_process"], cpu=cpu)
        my_heartbeat().enter("write")
        save_tensors(out / "sampled.pt", result.sampled)
        my_heartbeat().enter("write")
        each = enumerate(results)
        timings = [{**row, "rank": r} for r, one in each for row in one.timings]
        write_jsonl(out / "timings.jsonl", timings)
        measured = {"num_hosts": num_hosts(), "peak_memory_mb": peaks}
        if num_hosts() > 1:
            measured["machines"] = machines
        origin = provenance(script, gpu)
        write_json(out / "provenance.json", {**facts, **measured, **origin})

    only_first(write)


def write_records(
    out: Path, results: Sequence[TrainResult], threads: int, *, cpu: str | None = None
) -> None:
    """Write the deterministic files: losses, rows of hashes, and what their bits depend
    on, such as ``threads`` per process and ``cpu``, all hosts' CPUs (None: this one's).
    """
    losses = mean_losses(results)
    with open_atomic(out / "losses.csv") as file:
        # not pandas, which every rank would import before it could begin
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows([("step", "loss"), *enumerate(losses)])
    write_jsonl(out / "hashes.jsonl", rows_of(results))
    here = bits_depend_on(threads)
    write_json(out / "machine.json", {**here, "cpu": cpu or here["cpu"]})
