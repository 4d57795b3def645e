"""Record of a run: hashes of its tensors, taken outside of timed regions.

A row is a dict, a line of hashes.jsonl. Kinds of rows: ``batch`` (every step: hash of
the global batch), ``fed`` (every step: inputs of each rank's model), ``tensors``
(recorded steps: hash of every gradient before the optimizer and of every parameter and
buffer after it, on each rank), ``buckets`` (when the layout changes), ``forward``
(once: whether the forward pass depends only on its samples), ``collectives``
(:mod:`minitrain.bench.ledger`); ``probe``, ``no probe``, ``unwatched``
(:mod:`minitrain.train.eval_pass`).
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.core.cpu_load import Usage
from minitrain.core.files import open_atomic, reading, require_regular
from minitrain.data.batches import MicroBatch
from minitrain.data.cut import bytes_of, content_digest, tensors_of
from minitrain.sync.strategy import SyncTrace, whole
from minitrain.train.rng import RandomState, random_state, same_random_state

Row = dict[str, Any]
Tensors = dict[str, Tensor]
Buffers = list[Tensor]
DIGEST_MODULUS = 2**256
# late enough for the optimizer to matter, early enough for rounding to be small
EARLY_STEP = 2


def sha256_tensor(tensor: Tensor) -> str:
    """Return the SHA-256 (hex) of the row-major bytes. Collective if sharded."""
    return hashlib.sha256(bytes_of(whole(tensor))).hexdigest()


def recorded_steps(num_steps: int, hash_every: int, smaller: int | None) -> set[int]:
    """Return the steps to hash: the first three, every ``hash_every``-th, the last two,
    and ``smaller``, the first with a smaller batch (None if there is none).
    """
    first, last = range(min(3, num_steps)), num_steps - 1
    steps = {*first, *range(0, num_steps, hash_every), max(0, last - 1), last}
    return steps | ({smaller} if smaller is not None and smaller < num_steps else set())


def ledger_entry(digests: Sequence[Sequence[int]]) -> Row:
    """Return the row that identifies the samples of a global batch (the data ledger),
    from their digests by rank. ``sha256`` is the sum of digests modulo 2^256, in hex,
    which does not depend on how samples are distributed over ranks; ``ranks`` are the
    sums of each rank, shortened; ``repeated`` counts duplicate samples.
    """
    everyone = [digest for rank in digests for digest in rank]
    return {
        "sha256": ledger_sum(everyone),
        "samples": len(everyone),
        "repeated": len(everyone) - len(set(everyone)),
        "ranks": [ledger_sum(rank)[:16] for rank in digests],
    }


def ledger_sum(digests: Iterable[int]) -> str:
    """Return the sum of samples' SHA-256 ``digests`` modulo 2^256, in hex."""
    return f"{sum(digests) % DIGEST_MODULUS:064x}"


class StepRecord:
    """Rows of one rank, collected while it trains.

    Args:
        model: The plain module.
        steps: Steps to hash.
        sampled: Steps whose tensors are kept in ``sampled``, by ``STEP/KIND/NAME``: the
            state ``before``, ``gradients``, ``moments`` of the optimizer before its
            step, and parameters ``after``. ``early/state/NAME`` is the model after the
            third step.
        keep: Step whose ``gradients``, and parameters ``before`` and ``after``, are
            kept in ``values``; a replay adds the ``own`` gradients of each shard.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Iterable[int],
        sampled: Iterable[int] = (),
        keep: int | None = None,
    ) -> None:
        self._model, self._keep = model, keep
        self.steps, self.sampled_steps = frozenset(steps), frozenset(sampled)
        self._layout: list[Row] = []
        self._before_first: tuple[RandomState, Row] | None = None
        self.rows: list[Row] = []
        self.sampled: Tensors = {}
        self.values: dict[str, Any] = {}

    def kept(self) -> Row:
        """Return a dictionary of the rows so far, without tensors, for a checkpoint."""
        return {"rows": self.rows, "layout": self._layout}

    def restore(self, kept: Row) -> None:
        """Continue from the rows in ``kept``, returned by :meth:`kept`."""
        # in place, because results share the list
        self.rows[:] = kept["rows"]
        self._layout = kept["layout"]
        self._before_first = None

    def begin(self, step: int) -> None:
        """Copy the parameters to ``values`` if ``step`` is the step to keep."""
        if step == self._keep:
            self.values["before"] = whole_copies(dict(self._model.named_parameters()))

    def start(self, step: int, moments: Tensors) -> None:
        """Copy model state and optimizer ``moments`` before a step to ``sampled``."""
        self._sample(step, "before", self._model.state_dict())
        self._sample(step, "moments", moments)

    def fed(self, step: int, micro_batches: Sequence[MicroBatch]) -> None:
        """Add a ``fed`` row: samples and target counts of this rank's micro-batches."""
        named = [
            {
                "shard": one.shard,
                "targets": one.num_targets,
                "samples": sample_names(one.inputs) if one.num_targets else [],
            }
            for one in micro_batches
        ]
        ledger = ledger_sum(d for one in micro_batches for d in one.digests)
        # None on a rank without a shard
        targets = next((one.global_targets for one in micro_batches), None)
        row = {"parts": named, "global_targets": targets, "ledger": ledger[:16]}
        self.rows.append({"kind": "fed", "step": step, **row})

    def _sample(self, step: int | str, kind: str, tensors: Tensors) -> None:
        for name, tensor in whole_copies(tensors).items():
            self.sampled[f"{step}/{kind}/{name}"] = tensor

    def _copy(self, step: int, kind: str, tensors: Tensors) -> None:
        if step in self.sampled_steps:
            self._sample(step, kind, tensors)
        if step == self._keep:
            self.values[kind] = whole_copies(tensors)

    def layout(self, step: int, trace: SyncTrace) -> None:
        """Add a ``buckets`` row (layout, ranks of each host) if the buckets changed."""
        layout = [
            {"num_bytes": event.num_bytes, "parameters": list(event.parameters)}
            for event in trace.events
        ]
        if layout != self._layout:
            self._layout = layout
            hosts = {} if trace.hosts is None else {"hosts": trace.hosts}
            row = {"kind": "buckets", "step": step, "buckets": layout, **hosts}
            self.rows.append(row)

    def gradients(self, step: int) -> None:
        """Start a ``tensors`` row with the hash of every gradient. Call it between
        synchronization and the optimizer's step.
        """
        gradients = gradients_of(self._model)
        hashes = {name: sha256_tensor(grad) for name, grad in gradients.items()}
        self.rows.append({"kind": "tensors", "step": step, "gradients": hashes})
        self._copy(step, "gradients", gradients)

    def own_gradients(self, step: int, gradients: Sequence[Tensors]) -> None:
        """Copy each shard's ``gradients`` to ``values`` if ``step`` is to be kept."""
        if step == self._keep:
            self.values["own"] = [dict(own) for own in gradients]

    def state(
        self, step: int, precision: Row, ranks: Sequence[Buffers] | None = None
    ) -> None:
        """Complete the ``tensors`` row after the optimizer's step: hash of every
        parameter and buffer, and ``precision``, the state of the loss scaler. A replay
        passes the buffers of all ``ranks`` and gets a row for each.
        """
        parameters: Tensors = dict(self._model.named_parameters())
        row = self.rows.pop()
        row["parameters"] = {n: sha256_tensor(p) for n, p in parameters.items()}
        row["buffers"] = self._buffer_hashes()
        if precision:
            row["precision"] = precision
        if ranks is None:
            self.rows.append(row)
        for rank, buffers in enumerate(ranks or ()):
            hashes = self._buffer_hashes(buffers)
            self.rows.append({**row, "rank": rank, "buffers": hashes})
        if step == EARLY_STEP:
            self._sample("early", "state", self._model.state_dict())
        self._copy(step, "after", parameters)

    def _buffer_hashes(self, buffers: Buffers | None = None) -> dict[str, str]:
        names = [name for name, _ in self._model.named_buffers()]
        own = list(self._model.buffers()) if buffers is None else buffers
        return dict(zip(names, map(sha256_tensor, own), strict=True))

    def before_forward(self) -> None:
        """Store generator state and buffer hashes before the first forward pass."""
        if not self.rows:
            self._before_first = random_state(), self._buffer_hashes()

    def after_forward(self) -> None:
        """After the first forward pass, add the ``forward`` row: whether it drew random
        numbers or changed buffers.
        """
        if self._before_first is None:
            return
        numbers, buffers = self._before_first
        self._before_first = None
        found = {
            "draws_random_numbers": not same_random_state(numbers, random_state()),
            "changes_buffers": buffers != self._buffer_hashes(),
        }
        self.rows.append({"kind": "forward", **found})


def gradients_of(model: nn.Module) -> Tensors:
    """Return the gradients of ``model`` by name, omitting parameters without one."""
    named = model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}


def whole_copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return copies on the CPU by name, gathered if they are sharded. Collective."""
    return {name: whole(tensor).cpu().clone() for name, tensor in tensors.items()}


def sample_names(inputs: Any) -> list[str]:
    """Return the first 16 hex digits of each sample's SHA-256, over all its tensors."""
    rows = zip(*tensors_of(inputs), strict=True)
    return [f"{content_digest(row):064x}"[:16] for row in rows]


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Save tensors in a file whose bytes depend only on their names and contents."""
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    with open_atomic(path, "wb") as file:
        # through a file object: given a path, torch stores the file's name inside
        torch.save(copies, file)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load a file of :func:`save_tensors` on the CPU, without running code from it.
    Raises UserError if it cannot be loaded.
    """
    with reading(path):
        file = require_regular(path)
        return torch.load(file, map_location="cpu", weights_only=True)


@dataclass
class TrainResult:
    """Results of one rank.

    Attributes:
        losses: Shares of the mean loss of the global batch, per step and micro-batch.
        digests: Digests of the samples of each step.
        timings: Rows of a :class:`~minitrain.train.clock.StepClock`, one per step.
        hashes: Rows of a :class:`StepRecord`, and ``sampled`` its tensors.
        probes: Losses of :mod:`~minitrain.train.eval_pass` by name, at ``probe_step``.
        state: The full final state; empty if it was written to a file.
        values: Tensors of one step, as :class:`StepRecord` keeps them.
        went_on_from: Step of the checkpoint that the run resumed from, else 0.
    """

    losses: list[list[float]] = field(default_factory=list)
    digests: list[Sequence[int]] = field(default_factory=list)
    timings: list[Row] = field(default_factory=list)
    hashes: list[Row] = field(default_factory=list)
    sampled: dict[str, Tensor] = field(default_factory=dict)
    probes: dict[str, list[float]] = field(default_factory=dict)
    probe_step: int = -1
    state: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    num_parameters: int = 0
    gradient_bytes: int = 0
    usage: Usage = field(default_factory=Usage.now)
    went_on_from: int = 0


def mean_losses(results: Iterable[TrainResult]) -> list[float]:
    """Return the mean loss of the global batch at every step, from all ranks."""
    by_step = zip(*(result.losses for result in results), strict=True)
    return [mean_loss(step) for step in by_step]


def mean_loss(shares: Iterable[Sequence[float]]) -> float:
    """Return the mean loss: the sum of the ranks' ``shares``, weighted by targets."""
    # correctly rounded, so it does not depend on how the batch was distributed
    return math.fsum(share for rank in shares for share in rank)


def rows_of(results: Sequence[TrainResult]) -> list[Row]:
    """Return all rows for hashes.jsonl: ``batch`` rows, the rows of each rank with its
    number, and ``probe`` rows.
    """
    by_step = zip(*(result.digests for result in results), strict=True)
    batches = [
        {"kind": "batch", "step": step, **ledger_entry(digests)}
        for step, digests in enumerate(by_step)
    ]
    tensors = [
        {"rank": rank, **row} for rank, one in enumerate(results) for row in one.hashes
    ]
    step = results[0].probe_step
    probes = [
        {"kind": "probe", "name": name, "step": step, "loss": mean_loss(shares)}
        for name in results[0].probes
        for shares in [[result.probes[name] for result in results]]
    ]
    return batches + tensors + probes
