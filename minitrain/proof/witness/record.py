"""What a run was asked for, what it wrote, and how a comparison is put down."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Rung = dict[str, Any]
# elements that are computed at a time: of more, torch starts threads for each operation
PIECE = 1 << 15


@dataclass(frozen=True)
class Task:
    """What the run was asked for. ``loss(model, batch)`` is the mean over the
    ``count(batch)`` targets of a batch; ``wire`` is the type that gradients are sent
    in, where it is coarser than their own. Step ``smaller``, whose batch is the first
    with fewer samples, is sampled, and one that the ``digest`` of the data selects.
    ``whole``: the forward pass communicates, so that the ranks compute one batch
    together and it is never cut.
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
    whole: bool = False
    smaller: int | None = None
    digest: int = 0

    def promised(self) -> list[int]:
        """The steps whose tensors are hashed."""
        last = self.num_steps - 1
        steps = {*range(min(3, last + 1)), *range(0, last + 1, self.hash_every)}
        if self.smaller is not None and self.smaller <= last:
            steps.add(self.smaller)
        return sorted(steps | {max(0, last - 1), last})

    def sampled(self) -> set[int]:
        """The steps whose tensors are kept: the first two, the last, and two more."""
        steps = self.promised()
        drawn = steps[self.digest % len(steps)]
        smaller = {step for step in steps if step == self.smaller}
        return {*steps[:2], steps[-1], drawn} | smaller


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
        worst, gap = -1.0, 0.0
        bound = torch.as_tensor(allowed, dtype=torch.float64)
        for one, right, limit in pieces(found, wanted, bound):
            apart = (one.double() - right.double()).abs()
            share = torch.where(apart == 0, 0.0, apart / limit)
            # a NaN is beyond everything
            worst = max(worst, float(share.nan_to_num(nan=torch.inf).max()))
            gap = max(gap, float(apart.max().nan_to_num(torch.inf, torch.inf)))
        if worst > self.share:
            self.share, self.gap, self.where = worst, gap, where

    def rung(self) -> Rung:
        """Within what is allowed, or a breach."""
        if 0 <= self.share <= 1:
            detail = f"at most {self.share:.2g} of what is allowed, {self.where}"
            return rung("within tolerance", detail, self.gap)
        if self.share < 0:
            return rung("breach", self.where)
        times = f"{self.share:.3g} times what rounding explains"
        # no number for JSON where there is a NaN or an infinity
        gap = self.gap if math.isfinite(self.gap) else None
        return rung("breach", f"{self.where}: {times}", gap)


def pieces(first: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Of tensors of one shape, or of no dimension, which stand for all elements: the
    same part of each, small enough for what is computed from it to stay in a
    processor's cache.
    """
    count = first.numel()
    parts = [
        (t.flatten() if t.dim() else t.expand(count)).split(PIECE)
        for t in (first.reshape(-1), *others)
    ]
    if count:
        yield from zip(*parts, strict=True)


def data_rung(
    task: Task,
    record: Record,
    wrong_at: Callable[[int, Sequence[Mapping[str, Any]], Any], str],
) -> Rung:
    """What every rank read at every step; ``wrong_at`` a step, for the rows of its
    ranks and the ledger of its batch, says what is wrong with it, if so.
    """
    fed = {(row["step"], row["rank"]): row for row in record.kind("fed")}
    every = {(s, r) for s in range(task.num_steps) for r in range(task.world_size)}
    if fed.keys() != every or len(record.kind("fed")) != len(every):
        return rung("breach", "not every rank says what it read at every step")
    ledger = {row["step"]: row["ranks"] for row in record.kind("batch")}
    for step in range(task.num_steps):
        rows = [fed[step, rank] for rank in range(task.world_size)]
        if wrong := wrong_at(step, rows, ledger.get(step)):
            return rung("breach", f"step {step}: {wrong}")
    return rung("equal", f"{task.num_steps} batches")


def fed_names(row: Mapping[str, Any]) -> list[str]:
    """The samples that a rank computed at a step."""
    return [name for part in row["parts"] for name in part["samples"]]


def fed_targets(row: Mapping[str, Any]) -> int:
    """How many targets they have, as the rank counts."""
    return sum(part["targets"] for part in row["parts"])


def weight_is_wrong(row: Mapping[str, Any], targets: int, ledger: Any) -> str:
    """What is wrong with the weight of a rank's part in a batch of so many ``targets``,
    or with what it was fed, against the ``ledger`` of that batch.
    """
    rank, divisor = row["rank"], row.get("global_targets")
    # a rank without a part has no weight
    if row["parts"] and divisor != targets:
        return f"rank {rank} divides by {divisor} targets of the batch"
    if ledger is None or row.get("ledger") != ledger[rank]:
        return f"rank {rank} was fed what the ledger does not have"
    return ""
