"""What a run was asked for, what it wrote, its batches, and comparisons of tensors."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Rung = dict[str, Any]
HASHED = {"gradients": "gradients", "after": "parameters"}
Rows = Mapping[tuple[int, int], Mapping[str, Any]]
Digest = Callable[[Tensor], str]


@dataclass(frozen=True)
class Task:
    """Settings of the run. ``loss(model, batch)`` is the mean over the ``count(batch)``
    targets of a batch; ``wire`` is the type that gradients are sent in, if it is
    coarser than their own. Step ``smaller``, whose batch is the first with fewer
    samples, is sampled, and one that the ``digest`` of the data selects. ``whole``: the
    forward pass communicates, so that the ranks compute one batch together and it is
    never cut.
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
    """Record of the run: rows of hashes, the loss of every step, the final state, and
    tensors by ``STEP/KIND/NAME``. Of sampled steps these are ``before`` (state),
    ``gradients``, ``moments`` (of the optimizer, before) and ``after`` (parameters); of
    ``probe`` and ``rounded``, passes in eval mode from the final state without and with
    16 bits, ``gradients``.
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


@dataclass(frozen=True)
class Gap:
    """Distance of two tensors, also as a share of what is allowed."""

    share: float
    size: float
    where: str

    def rung(self) -> Rung:
        """Within what is allowed, or a breach."""
        if 0 <= self.share <= 1:
            detail = f"at most {self.share:.2g} of what is allowed, {self.where}"
            return rung("within tolerance", detail, self.size)
        if self.share < 0:
            return rung("breach", self.where)
        times = f"{self.share:.3g} times what rounding explains"
        # no number for JSON where there is a NaN or an infinity
        size = self.size if math.isfinite(self.size) else None
        return rung("breach", f"{self.where}: {times}", size)


NO_GAP = Gap(-1.0, 0.0, "nothing was compared")


def compare(found: Tensor, wanted: Tensor, allowed: Any, where: str) -> Gap:
    """Compare tensors of one shape; ``allowed`` is for each element or for all."""
    if found.shape != wanted.shape:
        return Gap(math.inf, math.inf, f"{where} has another shape")
    if not found.numel():
        return NO_GAP
    apart = (found.double() - wanted.double()).abs()
    share = torch.where(apart == 0, 0.0, apart / allowed)
    # a NaN is beyond everything
    most = share.nan_to_num(nan=torch.inf).max()
    return Gap(float(most), float(apart.max().nan_to_num(torch.inf, torch.inf)), where)


def largest(gaps: Iterable[Gap]) -> Gap:
    """The gap that is the largest share of what is allowed."""
    return max(gaps, key=lambda gap: gap.share, default=NO_GAP)


def data_rung(
    task: Task,
    record: Record,
    wrong_at: Callable[[int, Sequence[Mapping[str, Any]], Any], str],
) -> Rung:
    """Check what every rank read at every step; ``wrong_at`` a step, for the rows of
    its ranks and the ledger of its batch, returns what is wrong, if anything.
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
    return rung("passed", f"{task.num_steps} batches")


def fed_names(row: Mapping[str, Any]) -> list[str]:
    """The samples that a rank computed at a step."""
    return [name for part in row["parts"] for name in part["samples"]]


def fed_targets(row: Mapping[str, Any]) -> int:
    """Count their targets, as the rank does."""
    return sum(part["targets"] for part in row["parts"])


def weight_is_wrong(row: Mapping[str, Any], targets: int, ledger: Any) -> str:
    """Find what is wrong with the weight of a rank's part in a batch of so many
    ``targets``, or with what it was fed, by the ``ledger`` of that batch.
    """
    rank, divisor = row["rank"], row.get("global_targets")
    # a rank without a part has no weight
    if row["parts"] and divisor != targets:
        return f"rank {rank} divides by {divisor} targets of the batch"
    if ledger is None or row.get("ledger") != ledger[rank]:
        return f"rank {rank} was fed what the ledger does not have"
    return ""


def hashes_rung(task: Task, model: nn.Module, record: Record) -> Rung:
    """Require that every rank recorded every step that was promised, all with the same
    hashes, and that those of the sampled steps are of the tensors that the witness
    looks at: of every parameter, each step starting where the one before it ended.
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
    return rung("passed", f"{len(wanted)} records, sampled steps {sampled}")


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
    kind, _, name = key.partition("/")[2].partition("/")
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


def cuts(batch: Any, count: int) -> list[Any]:
    """Cut a batch into ``count`` parts of every ``count``-th sample."""
    most = min([count, *map(len, tensors_of(batch))])
    return [chosen(batch, slice(index, None, count)) for index in range(most)]


def chosen(batch: Any, rows: list[int] | slice) -> Any:
    """Select samples of a batch, in that order."""
    return mapped(batch, lambda tensor: tensor[rows].contiguous())


def doubled(batch: Any) -> Any:
    """Convert a batch's real numbers to float64."""
    return mapped(batch, lambda t: t.double() if t.is_floating_point() else t)


def names_of(batch: Any) -> list[str]:
    """Name each sample: the start of the SHA-256 of its tensors' bytes."""
    names = []
    for rows in zip(*tensors_of(batch), strict=True):
        digest = hashlib.sha256()
        for row in rows:
            digest.update(_bytes(row))
        names.append(digest.hexdigest()[:16])
    return names


def sha256(tensor: Tensor) -> str:
    """SHA-256 of all bytes of a tensor, row after row."""
    return hashlib.sha256(_bytes(tensor)).hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    dense = tensor.detach().reshape(-1)
    if dense.stride() != (1,) or dense.is_conj() or dense.is_neg():
        dense = torch.empty(dense.shape, dtype=dense.dtype).copy_(dense)
    return dense.view(torch.uint8).numpy().data


def tensors_of(batch: Any) -> list[Tensor]:
    """List the tensors in a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    values: Any = batch if isinstance(batch, list | tuple) else ()
    values = batch.values() if isinstance(batch, Mapping) else values
    return [tensor for value in values for tensor in tensors_of(value)]


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change all tensors of a batch."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        changed = [mapped(value, change) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*changed) if named else type(batch)(changed)
    return batch
