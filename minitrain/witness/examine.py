"""The witness examines a run: of the pipeline, or of any batches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from minitrain.witness.batches import chosen, cuts, names_of
from minitrain.witness.corpus import Corpus
from minitrain.witness.gradients import Judge
from minitrain.witness.hashes import hashes_rung
from minitrain.witness.optimizer import step_rung
from minitrain.witness.record import (
    Record,
    Rung,
    Task,
    fed_names,
    fed_targets,
    rung,
)


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
    batches = samples.batches(record)
    return {"witness_data": data} | numbers(task, record, batches.__getitem__, exact)


def examine_batches(
    task: Task, batches: Sequence[Any], record: Record, *, exact: bool = True
) -> dict[str, Rung]:
    """The same of a run over ``batches``, from the first again when they end."""
    data = cut_rung(task, batches, record)
    if data["verdict"] == "breach":
        return {"witness_data": data}

    def batch_of(step: int) -> Any:
        return batches[step % len(batches)]

    return {"witness_data": data} | numbers(task, record, batch_of, exact)


def cut_rung(task: Task, batches: Sequence[Any], record: Record) -> Rung:
    """Rank r computed every W-th sample of each batch, from r on, and counts its
    targets.
    """
    fed = {(row["step"], row["rank"]): row for row in record.kind("fed")}
    every = {(s, r) for s in range(task.num_steps) for r in range(task.world_size)}
    if fed.keys() != every or len(record.kind("fed")) != len(every):
        return rung("breach", "not every rank says what it read at every step")
    for step, rank in sorted(every):
        parts = cuts(batches[step % len(batches)], task.world_size)
        part = parts[rank] if rank < len(parts) else []
        row, names = fed[step, rank], names_of(part)
        if sorted(fed_names(row)) != sorted(names):
            return rung("breach", f"step {step}: rank {rank} read other samples")
        said, right = fed_targets(row), task.count(part) if names else 0
        if said != right:
            return rung("breach", f"step {step}: rank {rank} counts {said} targets")
    return rung("equal", f"{task.num_steps} batches")


def numbers(
    task: Task, record: Record, batch_of: Callable[[int], Any], exact: bool
) -> dict[str, Rung]:
    """The rungs that do not depend on where batches come from."""
    found: dict[str, Rung] = {"witness_hashes": hashes_rung(task, record)}
    # what follows needs a record that is whole
    if found["witness_hashes"]["verdict"] == "breach":
        return found
    if any(tensor.is_complex() for tensor in record.tensors.values()):
        why = "the witness does not know complex numbers"
        return found | {"witness_step": rung("not run", why)}
    found["witness_step"] = step_rung(task, record)

    def groups_of(step: int) -> list[list[Any]]:
        return grouped(batch_of(step), record, step)

    with torch.random.fork_rng(devices=[]):
        judge = Judge(task, record, batch_of, groups_of)
        if not exact:
            why = "gradients are approximations by design"
            found["witness_gradients"] = rung("not run", why)
            return found | judge.losses_only()
        if not tells_apart(record):
            why = "ranks have equal targets in every sampled step, but not in all"
            return found | {"witness_gradients": rung("not run", why)}
        return found | judge.probe() | judge.training()


def grouped(batch: Any, record: Record, step: int) -> list[list[Any]]:
    """A batch as the ranks computed it: a group for each shard, in it its parts."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names_of(batch)):
        places.setdefault(name, []).append(place)
    groups: dict[tuple[int, int], list[Any]] = {}
    for row in record.kind("fed"):
        for part in row["parts"] if row["step"] == step else ():
            if part["samples"]:
                # samples of one content are alike, so any of them will do
                rows = [places[name][0] for name in part["samples"]]
                group = groups.setdefault((row["rank"], part["shard"]), [])
                group.append(chosen(batch, rows))
    return list(groups.values())


def tells_apart(record: Record) -> bool:
    """Whether the sampled steps would show a mean of means, if any step would."""
    by_step: dict[int, set[int]] = {}
    for row in record.kind("fed"):
        by_step.setdefault(row["step"], set()).add(fed_targets(row))
    uneven = {step for step, targets in by_step.items() if len(targets) > 1}
    return not uneven or bool(uneven & {*record.steps()})
