"""The witness's checks of a run on a corpus (a pipeline run) or on given batches."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minitrain.proof.witness.corpus import Corpus
from minitrain.proof.witness.gradients import probe_rungs, training_rungs
from minitrain.proof.witness.mean import FINE, Asked, buffers_rung, mean_rungs
from minitrain.proof.witness.optimizer import step_rung
from minitrain.proof.witness.passes import Computer, built
from minitrain.proof.witness.record import (
    Record,
    RungDict,
    Task,
    chosen,
    cuts,
    data_rung,
    fed_names,
    fed_targets,
    hashes_rung,
    names_of,
    rung,
    tensors_of,
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
) -> dict[str, RungDict]:
    """Recompute a run from its corpus and params.yaml; return rungs (results) by name.
    ``exact``: compare gradients too (False if the strategy approximates them);
    ``wire``: type in which gradients are sent, if coarser than their own; ``section``:
    argument of the model's factory.
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
) -> dict[str, RungDict]:
    """Recompute a run whose step i used ``batches[i % len(batches)]``; return rungs
    (check results) by name. For ``exact`` see :func:`examine_run`.
    """
    sizes = [len(tensors_of(batch)[0]) for batch in batches]
    smaller = next((i for i, size in enumerate(sizes) if size < sizes[0]), None)
    (first,) = names_of(chosen(batches[0], [0]))
    task = replace(task, smaller=smaller, digest=int(first, 16))
    data = _cut_rung(task, batches, record)
    if data["verdict"] == "breach":
        return {"witness_data": data}

    def batch_of(step: int) -> Any:
        return batches[step % len(batches)]

    others = {*range(min(task.num_steps, len(batches)))} - {*record.steps()}
    return {"witness_data": data} | numbers(task, record, batch_of, exact, others)


def _cut_rung(task: Task, batches: Sequence[Any], record: Record) -> RungDict:
    # rank r must compute every W-th sample of each batch, from r on, and count targets
    def wrong_at(step: int, rows: Sequence[Mapping[str, Any]]) -> str:
        parts = cuts(batches[step % len(batches)], task.world_size)
        for rank, (row, part) in enumerate(zip(rows, parts, strict=True)):
            if sorted(fed_names(row)) != sorted(names_of(part)):
                return f"rank {rank} read different samples"
            if fed_targets(row) != task.count(part):
                return f"rank {rank} counts {fed_targets(row)} targets"
        return ""

    return data_rung(task, record, wrong_at)


def numbers(
    task: Task,
    record: Record,
    batch_of: Callable[[int], Any],
    exact: bool,
    others: Iterable[int] = (),
) -> dict[str, RungDict]:
    """Check hashes, optimizer steps, losses and, if ``exact``, gradients; return rungs
    by name. ``batch_of`` returns the batch of a step. At steps ``others``, which are
    not sampled, only batches are compared with their slices.
    """
    model = built(task)
    kept = model.state_dict()
    for name, _ in model.named_parameters():
        # torch's checkpoint_wrapper renames them, for example
        if name not in kept:
            why = f"parameter {name} is not in state_dict, as the witness requires"
            return {"witness_hashes": rung("not run", why)}
    found: dict[str, RungDict] = {"witness_hashes": hashes_rung(task, model, record)}
    # the remaining rungs need a complete record
    if found["witness_hashes"]["verdict"] == "breach":
        return found
    real = not any(tensor.is_complex() for tensor in record.tensors.values())
    if not (real and all(p.is_floating_point() for p in model.parameters())):
        why = "the witness supports no complex numbers and no parameters of integers"
        return found | {"witness_step": rung("not run", why)}
    found["witness_step"] = step_rung(task, record)
    # the caller's random numbers must not depend on the examination
    with torch.random.fork_rng(devices=[]):
        computer = Computer(task, model, record, batch_of)
        known: dict[int, Asked] = {}
        training = training_rungs(computer, known)
        mean = mean_rungs(computer, others, known)
        if not task.whole and (own := buffers_rung(computer)):
            mean["witness_buffers"] = own
        if not exact:
            why = "gradients are approximations by design"
            found["witness_gradients"] = rung("not run", why)
            return found | mean | {"witness_loss": training["witness_loss"]}
        found |= mean | probe_rungs(computer, mean["witness_mean"]) | training
    probed = [row["step"] for row in record.kind("probe")][:1]
    compared = dict.fromkeys(("witness_probe", "witness_precision"), probed)
    for name, steps in (compared | {"witness_gradients": record.steps()}).items():
        is_fine = found.get(name, {}).get("verdict") == FINE
        if is_fine and not (task.whole or _tells_apart(record, steps)):
            why = "slices have equal targets in the compared steps only"
            found[name] = rung("not run", why)
    return found


def _tells_apart(record: Record, steps: list[int]) -> bool:
    # returns whether ``steps`` would reveal a mean of means (of ranks, shards,
    # micro-batches); true also if no step would
    targets: dict[tuple[int, int], Counter[Any]] = defaultdict(Counter)
    for row in record.kind("fed"):
        for number, part in enumerate(row["parts"]):
            place = (row["rank"], part["shard"], number)
            for level in (1, 2, 3):
                targets[row["step"], level][place[:level]] += part["targets"]
    uneven = {
        n for (n, _), counted in targets.items() if len({*counted.values()} - {0}) > 1
    }
    return not uneven or bool(uneven & {*steps})
