"""The witness's checks of a run on a corpus (a pipeline run) or on given batches."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minitrain.proof.witness.corpus import Corpus
from minitrain.proof.witness.gradients import probe_rungs, repeats, training_rungs
from minitrain.proof.witness.mean import Asked, buffers_rung, mean_rungs
from minitrain.proof.witness.optimizer import step_rung
from minitrain.proof.witness.passes import Computer, built
from minitrain.proof.witness.record import (
    Record,
    Rung,
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
) -> dict[str, Rung]:
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


def _cut_rung(task: Task, batches: Sequence[Any], record: Record) -> Rung:
    # rank r must compute every W-th sample of each batch, from r on, and count targets
    def wrong_at(step: int, rows: Sequence[Mapping[str, Any]], ledger: Any) -> str:
        batch = batches[step % len(batches)]
        parts = cuts(batch, task.world_size)
        for rank, row in enumerate(rows):
            # a batch with fewer samples than ranks leaves some without a slice
            part = parts[rank] if rank < len(parts) else []
            names = names_of(part)
            if sorted(fed_names(row)) != sorted(names):
                return f"rank {rank} read different samples"
            counted, right = fed_targets(row), task.count(part) if names else 0
            if counted != right:
                return f"rank {rank} counts {counted} targets"
            if wrong := weight_is_wrong(row, task.count(batch), ledger):
                return wrong
        return ""

    return data_rung(task, record, wrong_at)


def numbers(
    task: Task,
    record: Record,
    batch_of: Callable[[int], Any],
    exact: bool,
    others: Iterable[int] = (),
) -> dict[str, Rung]:
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
    found: dict[str, Rung] = {"witness_hashes": hashes_rung(task, model, record)}
    # the remaining rungs need a complete record
    if found["witness_hashes"]["verdict"] == "breach":
        return found
    if any(tensor.is_complex() for tensor in record.tensors.values()):
        why = "the witness does not support complex numbers"
        return found | {"witness_step": rung("not run", why)}
    integers = [n for n, p in model.named_parameters() if not p.is_floating_point()]
    if integers:
        why = f"the witness does not support a parameter of integers: {integers[0]}"
        return found | {"witness_step": rung("not run", why)}
    found["witness_step"] = step_rung(task, record)
    # the caller's random numbers must not depend on the examination
    with torch.random.fork_rng(devices=[]):
        computer = Computer(task, model, record, batch_of)
        if not repeats(computer):
            why = "two equal passes differ: a state that is not in state_dict?"
            return found | {"witness_gradients": rung("not run", why)}
        known: dict[int, Asked] = {}
        training = training_rungs(computer, known)
        mean = mean_rungs(computer, others, known)
        if not task.whole and (own := buffers_rung(computer)):
            mean["witness_buffers"] = own
        if not exact:
            why = "gradients are approximations by design"
            approximate = {"witness_gradients": rung("not run", why)}
            loss = {"witness_loss": training["witness_loss"]}
            return found | approximate | mean | loss
        found |= mean | probe_rungs(computer, mean["witness_mean"]) | training
        probed = [row["step"] for row in record.kind("probe")][:1]
        for steps, names in (
            (record.steps(), ("witness_gradients",)),
            (probed, ("witness_probe", "witness_precision")),
        ):
            for name in () if task.whole or _tells_apart(record, steps) else names:
                if found.get(name, {}).get("verdict") == "within tolerance":
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
