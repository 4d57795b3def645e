"""Settings and record of a run, its batches, and comparison of tensors."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
RungDict = dict[str, Any]
HASHED = {"gradients": "gradients", "after": "parameters"}


@dataclass(frozen=True)
class Task:
    """Settings of the run.

    ``build`` creates the model; ``loss(model, batch)`` is the mean over the batch's
    ``count(batch)`` targets. ``wire`` is the type in which gradients are sent, if
    coarser than their own. Two sampled steps: ``smaller``, the first with a smaller
    batch, and one selected by ``digest``, a hash of the data. ``whole``: the forward
    pass communicates, so ranks compute a batch together and it is never cut.
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
        """Return the steps whose tensors the run must hash, sorted."""
        last = self.num_steps - 1
        steps = {*range(min(3, last + 1)), *range(0, last + 1, self.hash_every)}
        if self.smaller is not None and self.smaller <= last:
            steps.add(self.smaller)
        return sorted(steps | {max(0, last - 1), last})

    def sampled(self) -> set[int]:
        """Return the steps whose tensors the run must keep: the first two, the last,
        ``smaller`` if it is hashed, and one selected by ``digest``.
        """
        steps = self.promised()
        drawn = steps[self.digest % len(steps)]
        smaller = {step for step in steps if step == self.smaller}
        return {*steps[:2], steps[-1], drawn} | smaller


@dataclass(frozen=True)
class Record:
    """Record of the run: rows of hashes, the loss of every step, the final state, and
    tensors by ``STEP/KIND/NAME``. Kinds of a sampled step are ``before`` (state),
    ``gradients``, ``moments`` (of the optimizer, before) and ``after`` (parameters).
    Passes in eval mode from the final state, ``probe`` (float32) and ``rounded`` (16
    bits), stand for a step and have only ``gradients``.
    """

    rows: Sequence[Mapping[str, Any]]
    losses: Sequence[float]
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Tensor]

    def of(self, step: int | str, kind: str) -> Tensors:
        """Return the tensors of one kind at a step, by name; empty without any."""
        start = f"{step}/{kind}/"
        every = self.tensors.items()
        return {key[len(start) :]: t for key, t in every if key.startswith(start)}

    def steps(self) -> list[int]:
        """Return the sampled steps, which have tensors, sorted."""
        heads = {key.partition("/")[0] for key in self.tensors}
        return sorted(int(head) for head in heads if head.isdigit())

    def kind(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the rows whose kind is ``kind``."""
        return [row for row in self.rows if row["kind"] == kind]


def rung(verdict: str, detail: str, gap: float | None = None) -> RungDict:
    """Return the rung (result) of a check without bits; ``gap`` is its distance."""
    # literals on purpose: the witness shares no code with what it checks
    return {
        "bytes_equal": None,
        "max_ulp": None,
        "max_abs_diff": gap,
        "verdict": verdict,
        "detail": detail,
        "reason": None,
    }


@dataclass(frozen=True)
class Gap:
    """Largest difference of two tensors, absolute (``size``) and as a ``share`` of its
    limit (negative: nothing was compared). ``where`` names the tensors in a message.
    """

    share: float
    size: float
    where: str

    def rung(self) -> RungDict:
        """Return a rung: "within tolerance" for a share of 0 to 1, else "breach"."""
        if 0 <= self.share <= 1:
            detail = f"at most {self.share:.2g} of the limit, {self.where}"
            return rung("within tolerance", detail, self.size)
        if self.share < 0:
            return rung("breach", self.where)
        times = f"{self.share:.3g} times what rounding explains"
        # JSON has no NaN and no infinity
        size = self.size if math.isfinite(self.size) else None
        return rung("breach", f"{self.where}: {times}", size)


NO_GAP = Gap(-1.0, 0.0, "nothing was compared")


def compare(found: Tensor, wanted: Tensor, allowed: Any, where: str) -> Gap:
    """Return the gap of two tensors, called ``where``; ``allowed`` is the limit, one or
    per element. Different shapes give an infinite gap, empty tensors ``NO_GAP``.
    """
    if found.shape != wanted.shape:
        return Gap(math.inf, math.inf, f"{where} has a different shape")
    if not found.numel():
        return NO_GAP
    apart = (found.double() - wanted.double()).abs()
    share = torch.where(apart == 0, 0.0, apart / allowed)
    # a NaN exceeds every limit
    most = share.nan_to_num(nan=torch.inf).max()
    return Gap(float(most), float(apart.max().nan_to_num(torch.inf, torch.inf)), where)


def largest(gaps: Iterable[Gap]) -> Gap:
    """Return the gap with the largest share of its limit; ``NO_GAP`` if none."""
    return max(gaps, key=lambda gap: gap.share, default=NO_GAP)


def data_rung(
    task: Task,
    record: Record,
    wrong_at: Callable[[int, Sequence[Mapping[str, Any]]], str],
) -> RungDict:
    """Return the rung of all ranks' samples: passed if all are recorded and right.
    ``wrong_at`` gets a step and its ``fed`` rows by rank, and returns an error or "".
    Each rank must also divide by the batch's number of targets, and its samples must
    have its digest in the ledger.
    """
    fed = {(row["step"], row["rank"]): row for row in record.kind("fed")}
    every = {(s, r) for s in range(task.num_steps) for r in range(task.world_size)}
    if fed.keys() != every or len(record.kind("fed")) != len(every):
        return rung("breach", "not every rank recorded its samples at every step")
    ledger = {row["step"]: row["ranks"] for row in record.kind("batch")}
    for step in range(task.num_steps):
        rows = [fed[step, rank] for rank in range(task.world_size)]
        wrong, targets = wrong_at(step, rows), sum(map(fed_targets, rows))
        for rank, row in enumerate(rows):
            # a rank without samples has no weight
            if row["parts"] and row.get("global_targets") != targets:
                wrong = wrong or f"rank {rank} divides by a wrong number of targets"
            if step not in ledger or row.get("ledger") != ledger[step][rank]:
                wrong = wrong or f"rank {rank} was fed samples not in the ledger"
        if wrong:
            return rung("breach", f"step {step}: {wrong}")
    return rung("passed", f"{task.num_steps} batches")


def fed_names(row: Mapping[str, Any]) -> list[str]:
    """Return the names of all samples in a ``fed`` row, about one rank and step."""
    return [name for part in row["parts"] for name in part["samples"]]


def fed_targets(row: Mapping[str, Any]) -> int:
    """Return the number of targets in a ``fed`` row, as counted by the rank."""
    return sum(part["targets"] for part in row["parts"])


def hashes_rung(task: Task, model: nn.Module, record: Record) -> RungDict:
    """Return a rung: "passed" if every rank recorded each promised step with equal
    hashes, the hashes of sampled steps match all tensors that the witness uses, and
    each step starts from the state after the previous one; else "breach".
    """
    for wrong in _wrong_hashes(task, model, record):
        return rung("breach", wrong)
    num_records = len(task.promised()) * task.world_size
    return rung("passed", f"{num_records} records, sampled steps {record.steps()}")


def _wrong_hashes(task: Task, model: nn.Module, record: Record) -> Iterator[str]:
    rows = {(row["step"], row["rank"]): row for row in record.kind("tensors")}
    ranks, sampled, losses = range(task.world_size), record.steps(), record.losses
    wanted = {(step, rank) for step in task.promised() for rank in ranks}
    if rows.keys() != wanted or len(record.kind("tensors")) != len(wanted):
        step, rank = min(rows.keys() ^ wanted, default=(0, 0))
        yield f"step {step}, rank {rank} is not recorded as promised"
    if {*sampled} != task.sampled() or len(losses) != task.num_steps:
        yield f"sampled steps {sampled}, {len(losses)} losses: not as promised"
    if not all(math.isfinite(loss) for loss in losses):
        yield "not every loss is a finite number"
    # the witness computes from rank 0's tensors, so other ranks must equal them
    for step, rank in sorted(wanted):
        for key in HASHED.values():
            if rows[step, rank].get(key) != rows[step, 0].get(key):
                yield f"step {step}: rank {rank} has different {key}"
    parameters, state = dict(model.named_parameters()), model.state_dict()
    if record.state.keys() != state.keys():
        yield "the final state is from a different model"
    # the end of a step and the start of the next are often the same tensor
    digest = cache(sha256)
    for step in sampled:
        before, after = record.of(step, "before"), record.of(step, "after")
        if after.keys() != parameters.keys() or before.keys() != state.keys():
            yield f"step {step}: the state differs from the model's"
        for name, one in parameters.items():
            pair = before.get(name, one), after.get(name, one)
            if any((t.dtype, t.shape) != (one.dtype, one.shape) for t in pair):
                yield f"step {step}: {name} does not have the model's shape and type"
        for kind, key in HASHED.items():
            own = {name: digest(t) for name, t in record.of(step, kind).items()}
            if not own or own != rows[step, 0].get(key):
                yield f"step {step}: hashes of different {key}"
        # what happens between two steps, such as a reset parameter, would go unnoticed
        for name, end in rows.get((step - 1, 0), {}).get("parameters", {}).items():
            if digest(before[name]) != end:
                yield f"step {step} does not start from the end of step {step - 1}"
    for name, tensor in record.of(sampled[-1], "after").items():
        if digest(record.state[name]) != digest(tensor):
            yield "the final state is not the state after the last step"


def cuts(batch: Any, count: int) -> list[Any]:
    """Return the slices ``[i::count]`` of a batch, at most as many as its samples."""
    most = min([count, *map(len, tensors_of(batch))])
    return [chosen(batch, slice(index, None, count)) for index in range(most)]


def chosen(batch: Any, rows: list[int] | slice) -> Any:
    """Return a batch of the samples ``rows`` (list or slice) only, in this order."""
    return mapped(batch, lambda tensor: tensor[rows].contiguous())


def doubled(batch: Any) -> Any:
    """Return a batch with its floating-point tensors converted to float64."""
    return mapped(batch, lambda t: t.double() if t.is_floating_point() else t)


def names_of(batch: Any) -> list[str]:
    """Return each sample's name: the start of the SHA-256 of its tensors' bytes."""
    return [
        hashlib.sha256(b"".join(map(_bytes, rows))).hexdigest()[:16]
        for rows in zip(*tensors_of(batch), strict=True)
    ]


def sha256(tensor: Tensor) -> str:
    """Return the SHA-256 of the bytes of a tensor, in row-major order."""
    return hashlib.sha256(_bytes(tensor)).hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    dense = tensor.detach().reshape(-1)
    if dense.stride() != (1,) or dense.is_conj() or dense.is_neg():
        dense = torch.empty(dense.shape, dtype=dense.dtype).copy_(dense)
    return dense.view(torch.uint8).numpy().data


def tensors_of(batch: Any) -> list[Tensor]:
    """Return all tensors in a batch: a tensor, or nested lists, tuples and mappings."""
    if isinstance(batch, Tensor):
        return [batch]
    values: Any = batch if isinstance(batch, list | tuple) else ()
    values = batch.values() if isinstance(batch, Mapping) else values
    return [tensor for value in values for tensor in tensors_of(value)]


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch of the same structure, with ``change`` applied to all tensors."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        changed = [mapped(value, change) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*changed) if named else type(batch)(changed)
    return batch
