"""The witness examines a run: of the pipeline, or of any batches."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minitrain.proof.witness.batches import (
    chosen,
    cuts,
    names_of,
    part_of,
    tensors_of,
)
from minitrain.proof.witness.buffers import buffers_rung
from minitrain.proof.witness.corpus import Corpus
from minitrain.proof.witness.gradients import Judge
from minitrain.proof.witness.hashes import hashes_rung
from minitrain.proof.witness.optimizer import step_rung
from minitrain.proof.witness.passes import Computer, built
from minitrain.proof.witness.record import (
    Record,
    Rung,
    Task,
    fed_names,
    fed_targets,
    rung,
    weight_is_wrong,
)


def examine_run(
    corpus: Path,
    params: Path,
    record: Record,
    world_size: int,
    *,
    wire: torch.dtype | None = None,
    exact: bool = True,
    section: Any = None,
) -> dict[str, Rung]:
    """Every rung of a run of the pipeline, from the corpus and params.yaml.

    Where gradients are approximations by design (not ``exact``) they are not compared;
    ``wire`` is what they are rounded to on their way, ``section`` what the model's
    factory is given (attributes of the ``model`` section unless told).
    """
    samples = Corpus(corpus, params)
    task = samples.task(world_size, wire, section)
    data = samples.data_rung(task, record)
    if data["verdict"] == "breach":
        return {"witness_data": data}
    batches = samples.batches(record)
    return {"witness_data": data} | numbers(task, record, batches.__getitem__, exact)


def examine_batches(
    task: Task, batches: Sequence[Any], record: Record, *, exact: bool = True
) -> dict[str, Rung]:
    """The same of a run over ``batches``, from the first again when they end."""
    sizes = [len(tensors_of(batch)[0]) for batch in batches]
    smaller = next((i for i, size in enumerate(sizes) if size < sizes[0]), None)
    first = names_of(part_of(batches[0], 0, sizes[0]))
    task = replace(task, smaller=smaller, digest=int(first[0], 16))
    data = cut_rung(task, batches, record)
    if data["verdict"] == "breach":
        return {"witness_data": data}

    def batch_of(step: int) -> Any:
        return batches[step % len(batches)]

    # all batches are looked at
    others = {*range(min(task.num_steps, len(batches)))} - {*record.steps()}
    return {"witness_data": data} | numbers(task, record, batch_of, exact, others)


def cut_rung(task: Task, batches: Sequence[Any], record: Record) -> Rung:
    """Rank r computed every W-th sample of each batch, from r on, and counts its
    targets.
    """
    fed = {(row["step"], row["rank"]): row for row in record.kind("fed")}
    every = {(s, r) for s in range(task.num_steps) for r in range(task.world_size)}
    if fed.keys() != every or len(record.kind("fed")) != len(every):
        return rung("breach", "not every rank says what it read at every step")
    ledger = {row["step"]: row["ranks"] for row in record.kind("batch")}
    for step, rank in sorted(every):
        batch = batches[step % len(batches)]
        parts = cuts(batch, task.world_size)
        part = parts[rank] if rank < len(parts) else []
        row, names = fed[step, rank], names_of(part)
        if sorted(fed_names(row)) != sorted(names):
            return rung("breach", f"step {step}: rank {rank} read other samples")
        said, right = fed_targets(row), task.count(part) if names else 0
        if said != right:
            return rung("breach", f"step {step}: rank {rank} counts {said} targets")
        if wrong := weight_is_wrong(row, task.count(batch), ledger.get(step)):
            return rung("breach", f"step {step}: {wrong}")
    return rung("equal", f"{task.num_steps} batches")


def numbers(
    task: Task,
    record: Record,
    batch_of: Callable[[int], Any],
    exact: bool,
    others: Iterable[int] = (),
) -> dict[str, Rung]:
    """The rungs that do not depend on where batches come from. Of ``others``, which are
    no sampled steps, the batches are compared with their parts.
    """
    model = built(task)
    found: dict[str, Rung] = {"witness_hashes": hashes_rung(task, model, record)}
    # what follows needs a record that is whole
    if found["witness_hashes"]["verdict"] == "breach":
        return found
    if any(tensor.is_complex() for tensor in record.tensors.values()):
        why = "the witness does not know complex numbers"
        return found | {"witness_step": rung("not run", why)}
    found["witness_step"] = step_rung(task, record)

    def groups_of(step: int) -> list[list[Any]]:
        return (together if task.whole else grouped)(batch_of(step), record, step)

    with torch.random.fork_rng(devices=[]):
        judge = Judge(Computer(task, model), record, batch_of, groups_of)
        if not judge.repeats():
            why = "the same pass twice differs: a state that state_dict does not have?"
            return found | {"witness_gradients": rung("not run", why)}
        training = judge.training()
        mean = judge.mean.rungs(record, others)
        if not task.whole and (own := buffers_rung(judge.computer, record, groups_of)):
            mean["witness_buffers"] = own
        if not exact:
            why = "gradients are approximations by design"
            approximate = {"witness_gradients": rung("not run", why)}
            loss = {"witness_loss": training["witness_loss"]}
            return found | approximate | mean | loss
        found |= mean | judge.probe(mean["witness_mean"]) | training
        probed = [row["step"] for row in record.kind("probe")][:1]
        for steps, names in (
            (record.steps(), ("witness_gradients",)),
            (probed, ("witness_probe", "witness_precision")),
        ):
            for name in () if task.whole or tells_apart(record, steps) else names:
                if found.get(name, {}).get("verdict") == "within tolerance":
                    why = "parts have equal targets in the steps compared, not in all"
                    found[name] = rung("not run", why)
        return found


def grouped(batch: Any, record: Record, step: int) -> list[list[Any]]:
    """A batch as the ranks computed it: a group for each shard, in it its parts."""
    places = places_of(batch)
    groups: dict[tuple[int, int], list[Any]] = {}
    for row in record.kind("fed"):
        for part in row["parts"] if row["step"] == step else ():
            if part["samples"]:
                rows = [places[name] for name in part["samples"]]
                group = groups.setdefault((row["rank"], part["shard"]), [])
                group.append(chosen(batch, rows))
    return list(groups.values())


def together(batch: Any, record: Record, step: int) -> list[list[Any]]:
    """Return a batch as ranks compute it whose forward pass communicates: micro-batch
    k of all ranks is one part, with the samples of the first rank first.
    """
    places = places_of(batch)
    rows = [row["parts"] for row in record.kind("fed") if row["step"] == step]
    parts = [
        [places[name] for part in parts for name in part["samples"]]
        for parts in zip(*rows, strict=True)
    ]
    return [[chosen(batch, part) for part in parts if part]]


def places_of(batch: Any) -> dict[str, int]:
    """A row for each name of a sample; samples of one content are interchangeable."""
    return {name: place for place, name in enumerate(names_of(batch))}


def tells_apart(record: Record, steps: list[int]) -> bool:
    """Whether those steps would show a mean of means, if any step would: of ranks, of
    shards or of the parts of one.
    """
    uneven = set()
    for step, rows in by_step(record).items():
        parts = [(row["rank"], part) for row in rows for part in row["parts"]]
        for level in (
            [fed_targets(row) for row in rows],
            sums((rank, part["shard"], part["targets"]) for rank, part in parts),
            [part["targets"] for _, part in parts if part["samples"]],
        ):
            if len({*level} - {0}) > 1:
                uneven.add(step)
    return not uneven or bool(uneven & {*steps})


def by_step(record: Record) -> dict[int, list[Any]]:
    """The rows of what was fed, by step."""
    found: dict[int, list[Any]] = {}
    for row in record.kind("fed"):
        found.setdefault(row["step"], []).append(row)
    return found


def sums(parts: Any) -> list[int]:
    """The targets of each shard."""
    found: dict[tuple[int, int], int] = {}
    for rank, shard, targets in parts:
        found[rank, shard] = found.get((rank, shard), 0) + targets
    return list(found.values())
