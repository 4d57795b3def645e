"""Whether a record is whole, and its hashes are those of its tensors."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.proof.witness.batches import bytes_of
from minitrain.proof.witness.record import Record, Rung, Task, rung

HASHED = {"gradients": "gradients", "after": "parameters"}
Rows = Mapping[tuple[int, int], Mapping[str, Any]]


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
    hashes = Hashes()
    wrong = state_is_wrong(model, record, hashes)
    for step in sampled:
        wrong = wrong or step_is_wrong(step, rows, record, hashes)
    if wrong:
        return rung("breach", wrong)
    return rung("equal", f"{len(wanted)} records, sampled steps {sampled}")


def state_is_wrong(model: nn.Module, record: Record, sha256: "Hashes") -> str:
    """What is missing in the states, or is not that of the last step."""
    parameters = {name for name, _ in model.named_parameters()}
    for step in record.steps():
        if record.of(step, "after").keys() != parameters:
            return f"step {step}: other parameters than the model has"
        if record.of(step, "before").keys() != model.state_dict().keys():
            return f"step {step}: another state than the model has"
    if record.state.keys() != model.state_dict().keys():
        return "the final state is of another model"
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for key, tensor in record.tensors.items():
        if not fits(key, tensor, shapes):
            return f"{key} has another shape or type than the model's"
    for name, tensor in record.of(record.steps()[-1], "after").items():
        if sha256(record.state[name]) != sha256(tensor):
            return "the final state is not that of the last step"
    return ""


def fits(key: str, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> bool:
    """Whether a recorded tensor is one of the model's."""
    _, kind, name = key.split("/", 2)
    if kind == "moments":
        name, _, moment = name.rpartition("/")
        if moment == "step":
            return tensor.numel() == 1
    whole = tensor.is_floating_point() or tensor.is_complex()
    whole = whole or kind in ("before", "state")
    return whole and tensor.shape == shapes.get(name)


def step_is_wrong(step: int, rows: Rows, record: Record, sha256: "Hashes") -> str:
    """What a sampled step has other hashes of, or where it did not start."""
    for kind, key in HASHED.items():
        own = {name: sha256(t) for name, t in record.of(step, kind).items()}
        if not own or own != rows[step, 0].get(key):
            return f"step {step}: hashes of other {key}"
    before = record.of(step, "before")
    for name, digest in rows.get((step - 1, 0), {}).get("parameters", {}).items():
        if sha256(before[name]) != digest:
            return f"step {step} does not start where step {step - 1} ended: {name}"
    return ""


class Hashes:
    """SHA-256 of tensors. Nobody writes into a record while it is looked at, so what
    lies in one place is read once: the end of a step is often the start of the next.
    """

    def __init__(self) -> None:
        self.known: dict[Any, str] = {}

    def __call__(self, tensor: Tensor) -> str:
        lies = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        # the same bytes, read as others
        place = *lies, tensor.is_conj(), tensor.is_neg()
        if place not in self.known:
            self.known[place] = sha256(tensor)
        return self.known[place]


def sha256(tensor: Tensor) -> str:
    """Of all bytes of a tensor, row after row."""
    return hashlib.sha256(bytes_of(tensor)).hexdigest()
