"""Check that a record is whole, and that its hashes are those of its tensors."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.proof.witness.record import Record, Rung, Task, rung, sha256

HASHED = {"gradients": "gradients", "after": "parameters"}
Rows = Mapping[tuple[int, int], Mapping[str, Any]]
Digest = Callable[[Tensor], str]


def hashes_rung(task: Task, model: nn.Module, record: Record) -> Rung:
    """Every rank recorded every step that was promised, all with the same hashes, and
    those of the sampled steps are of the tensors that the witness looks at: of every
    parameter, and each step starts where the one before it ended.
    """
    last, promised = task.num_steps - 1, task.promised()
    rows = {(row["step"], row["rank"]): row for row in record.kind("tensors")}
    wanted = {(step, rank) for step in promised for rank in range(task.world_size)}
    if rows.keys() != wanted or len(record.kind("tensors")) != len(wanted):
        step, rank = min(rows.keys() ^ wanted, default=(0, 0))
        return rung("breach", f"step {step}, rank {rank} is not recorded as promised")
    sampled, losses = record.steps(), record.losses
    if {*sampled} != task.sampled() or len(losses) != last + 1:
        what = f"sampled steps {sampled}, {len(losses)} losses"
        return rung("breach", f"{what}: not as promised")
    if not all(math.isfinite(loss) for loss in losses):
        return rung("breach", "not every loss is a finite number")
    for step, rank in sorted(wanted):
        for key in HASHED.values():
            if rows[step, rank].get(key) != rows[step, 0].get(key):
                return rung("breach", f"step {step}: rank {rank} has other {key}")
    # the end of a step is often the very tensor that the next starts with
    digest = cache(sha256)
    wrong = _state_is_wrong(model, record, digest)
    for step in sampled:
        wrong = wrong or _step_is_wrong(step, rows, record, digest)
    if wrong:
        return rung("breach", wrong)
    return rung("equal", f"{len(wanted)} records, sampled steps {sampled}")


def _state_is_wrong(model: nn.Module, record: Record, digest: Digest) -> str:
    parameters, state = dict(model.named_parameters()), model.state_dict()
    for step in record.steps():
        if record.of(step, "after").keys() != parameters.keys():
            return f"step {step}: other parameters than the model has"
        if record.of(step, "before").keys() != state.keys():
            return f"step {step}: another state than the model has"
    if record.state.keys() != state.keys():
        return "the final state is of another model"
    shapes = {name: tensor.shape for name, tensor in state.items()}
    for key, tensor in record.tensors.items():
        if not _fits(key, tensor, shapes):
            return f"{key} has another shape or type than the model's"
    for name, tensor in record.of(record.steps()[-1], "after").items():
        if digest(record.state[name]) != digest(tensor):
            return "the final state is not that of the last step"
    return ""


def _fits(key: str, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> bool:
    _, kind, name = key.split("/", 2)
    if kind == "moments":
        name, _, moment = name.rpartition("/")
        if moment == "step":
            return tensor.numel() == 1
    real = tensor.is_floating_point() or tensor.is_complex()
    return (real or kind in ("before", "state")) and tensor.shape == shapes.get(name)


def _step_is_wrong(step: int, rows: Rows, record: Record, digest: Digest) -> str:
    for kind, key in HASHED.items():
        own = {name: digest(t) for name, t in record.of(step, kind).items()}
        if not own or own != rows[step, 0].get(key):
            return f"step {step}: hashes of other {key}"
    before = record.of(step, "before")
    for name, wanted in rows.get((step - 1, 0), {}).get("parameters", {}).items():
        if digest(before[name]) != wanted:
            return f"step {step} does not start where step {step - 1} ended: {name}"
    return ""
