"""What a run was asked for, what it wrote, and whether its hashes are of that."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Rung = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What the run was asked for. ``loss(model, batch)`` is the mean over the
    ``count(batch)`` targets of a batch; ``wire`` is the type that gradients are sent
    in, where it is coarser than their own.
    """

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    count: Callable[[Any], int]
    world_size: int
    num_steps: int
    hash_every: int
    optimizer: str
    learning_rate: float
    precision: str = "float32"
    wire: torch.dtype | None = None


@dataclass(frozen=True)
class Record:
    """What the run wrote: rows of hashes, the loss of every step, the final state, and
    tensors by ``STEP/KIND/NAME``. Of sampled steps these are ``before`` (state),
    ``gradients``, ``moments`` (of the optimizer, before) and ``after`` (parameters); of
    ``probe`` and ``rounded``, passes in eval mode from the final state without and
    with 16 bits, ``gradients``.
    """

    rows: Sequence[Mapping[str, Any]]
    losses: Sequence[float]
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Tensor]

    def of(self, step: int | str, kind: str) -> Tensors:
        """The tensors of one kind at a step, by name."""
        start = f"{step}/{kind}/"
        every = self.tensors.items()
        return {key[len(start) :]: t for key, t in every if key.startswith(start)}

    def steps(self) -> list[int]:
        """The sampled steps."""
        heads = {key.partition("/")[0] for key in self.tensors}
        return sorted(int(head) for head in heads if head.isdigit())

    def kind(self, kind: str) -> list[Mapping[str, Any]]:
        """The rows of one kind."""
        return [row for row in self.rows if row["kind"] == kind]


def rung(verdict: str, detail: str, gap: float | None = None) -> Rung:
    """One comparison; it is not about bits."""
    return {
        "bytes_equal": None,
        "max_ulp": None,
        "max_abs_diff": gap,
        "verdict": verdict,
        "detail": detail,
    }


class Worst:
    """The largest of many differences, as a share of what is allowed."""

    def __init__(self) -> None:
        self.share, self.gap, self.where = -1.0, 0.0, "nothing was compared"

    def add(self, found: Tensor, wanted: Tensor, allowed: Any, where: str) -> None:
        """Compare tensors of one shape; ``allowed`` is for each element or for all."""
        if found.shape != wanted.shape:
            self.share, self.where = torch.inf, f"{where} has another shape"
            return
        apart = (found.double() - wanted.double()).abs()
        share = torch.where(apart == 0, 0.0, apart / allowed)
        # a NaN is beyond everything
        worst = float(share.nan_to_num(nan=torch.inf).max()) if found.numel() else 0.0
        if worst > self.share:
            self.share, self.gap, self.where = worst, float(apart.max()), where

    def rung(self) -> Rung:
        """Within what is allowed, or a breach."""
        if 0 <= self.share <= 1:
            detail = f"at most {self.share:.2g} of what is allowed, {self.where}"
            return rung("within tolerance", detail, self.gap)
        if self.share < 0:
            return rung("breach", self.where)
        times = f"{self.share:.3g} times what rounding explains"
        return rung("breach", f"{self.where}: {times}", self.gap)


def hashes_rung(task: Task, record: Record) -> Rung:
    """Every rank recorded every step that was promised, and its hashes of the sampled
    steps are those of the tensors that the witness looks at.
    """
    last = task.num_steps - 1
    promised = {*range(min(3, last + 1)), *range(0, last + 1, task.hash_every), last}
    rows = {(row["step"], row["rank"]): row for row in record.kind("tensors")}
    wanted = {(step, rank) for step in promised for rank in range(task.world_size)}
    if rows.keys() != wanted:
        step, rank = min(rows.keys() ^ wanted)
        return rung("breach", f"step {step}, rank {rank} is not recorded as promised")
    sampled = record.steps()
    if not {0, last} <= {*sampled} <= promised or len(record.losses) != last + 1:
        what = f"sampled steps {sampled}, {len(record.losses)} losses"
        return rung("breach", f"{what}: not as promised")
    for step in sampled:
        for kind, key in (("gradients", "gradients"), ("after", "parameters")):
            own = {name: sha256(t) for name, t in record.of(step, kind).items()}
            for rank in range(task.world_size):
                if not own or own != rows[step, rank][key]:
                    where = f"step {step}, rank {rank}"
                    return rung("breach", f"{where}: hashes of other {key}")
    end = record.of(last, "after")
    if any(sha256(record.state[name]) != sha256(t) for name, t in end.items()):
        return rung("breach", "the final state is not that of the last step")
    return rung("equal", f"{len(wanted)} records, sampled steps {sampled}")


def sha256(tensor: Tensor) -> str:
    """Of all bytes of a tensor, row after row."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
