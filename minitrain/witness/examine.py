"""The witness examines a run: of the pipeline, or of any batches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from minitrain.witness.batches import cuts, names_of
from minitrain.witness.corpus import Corpus
from minitrain.witness.gradients import Judge
from minitrain.witness.optimizer import step_rung
from minitrain.witness.record import Record, Rung, Task, hashes_rung, rung


def examine_run(
    corpus: Path,
    params: Path,
    record: Record,
    world_size: int,
    *,
    wire: torch.dtype | None = None,
    exact: bool = True,
) -> dict[str, Rung]:
    """Every rung of a run of the pipeline, from the corpus and params.yaml.

    Where gradients are approximations by design (not ``exact``) they are not compared;
    ``wire`` is what they are rounded to on their way.
    """
    samples = Corpus(corpus, params)
    task = samples.task(world_size, wire)
    data = samples.data_rung(task, record)
    if data["verdict"] == "breach":
        return {"witness_data": data}
    return {"witness_data": data} | numbers(
        task, record, samples.batches(record).__getitem__, exact
    )


def examine_batches(
    task: Task, batches: Sequence[Any], record: Record, *, exact: bool = True
) -> dict[str, Rung]:
    """The same of a run over ``batches``, from the first again when they end."""
    data = cut_rung(task, batches, record)
    if data["verdict"] == "breach":
        return {"witness_data": data}
    return {"witness_data": data} | numbers(
        task, record, lambda step: batches[step % len(batches)], exact
    )


def cut_rung(task: Task, batches: Sequence[Any], record: Record) -> Rung:
    """Rank r computed every W-th sample of each batch, from r on."""
    fed = {(row["step"], row["rank"]): row for row in record.kind("fed")}
    every = {(s, r) for s in range(task.num_steps) for r in range(task.world_size)}
    if fed.keys() != every or len(record.kind("fed")) != len(every):
        return rung("breach", "not every rank says what it read at every step")
    for step, rank in sorted(every):
        part = cuts(batches[step % len(batches)], task.world_size)[rank]
        if sorted(fed[step, rank]["samples"]) != sorted(names_of(part)):
            return rung("breach", f"step {step}: rank {rank} read other samples")
    return rung("equal", f"{task.num_steps} batches")


def numbers(
    task: Task, record: Record, batch_of: Callable[[int], Any], exact: bool
) -> dict[str, Rung]:
    """The rungs that do not depend on where batches come from."""
    found: dict[str, Rung] = {"witness_hashes": hashes_rung(task, record)}
    # what follows needs a record that is whole
    if found["witness_hashes"]["verdict"] == "breach":
        return found
    found["witness_step"] = step_rung(task, record)
    if not exact:
        why = "gradients are approximations by design"
        return found | {"witness_gradients": rung("not run", why)}
    judge = Judge(task)
    with torch.random.fork_rng(devices=[]):
        return found | judge.probe(record, batch_of) | judge.training(record, batch_of)
