"""Evidence: the recorded data of a run, which checks compare with other runs.

``Rows`` are lines of hashes.jsonl (:mod:`minitrain.train.step_record`). The replay
stage imports this file, so it must not import verdicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from minitrain.core.files import read_csv, read_jsonl
from minitrain.train.step_record import TrainResult, load_tensors, mean_losses, rows_of

Tensors = Mapping[str, Tensor]
Rows = Sequence[Mapping[str, Any]]
What = Literal["gradients", "parameters", "buffers"]
# in the order of a step: an error makes everything after it wrong
IN_ORDER: tuple[What, ...] = ("gradients", "parameters", "buffers")


@dataclass(frozen=True)
class Evidence:
    """Data on a run: hash ``rows``, mean loss of every step, final state of every rank,
    ``sampled`` tensors by STEP/KIND/NAME, initial state ``start``, per rank the
    ``values`` (tensors) of a step to keep, and ``results`` if in memory. ``unit``: one
    ULP of 1.0 in the coarsest dtype of a perturbed run, else 0.
    """

    rows: Rows
    losses: Sequence[float]
    states: Sequence[Tensors]
    sampled: Tensors = field(default_factory=dict)
    start: Tensors = field(default_factory=dict)
    values: Sequence[Mapping[str, Any]] = ()
    results: Sequence[TrainResult] = ()
    unit: float = 0.0

    @property
    def state(self) -> Tensors:
        """Final state of rank 0."""
        return self.states[0]

    @property
    def gradients(self) -> Tensors:
        """Synchronized gradients of step 0; empty if they were not sampled."""
        return self._of("0/gradients/")

    @property
    def early(self) -> Tensors:
        """Model state after the third step; empty if there were fewer steps."""
        return self._of("early/state/")

    def _of(self, prefix: str) -> Tensors:
        sampled = self.sampled.items()
        return {k.removeprefix(prefix): t for k, t in sampled if k.startswith(prefix)}


def evidence_of(
    results: Sequence[TrainResult], states: Sequence[Tensors], **more: Any
) -> Evidence:
    """Return a run's evidence from each rank's results; ``more`` are other fields."""
    return Evidence(
        rows=rows_of(results),
        losses=mean_losses(results),
        states=states,
        sampled=results[0].sampled,
        results=results,
        **more,
    )


def read_evidence(
    folder: Path, states: Sequence[Path], *, sampled: bool = True, **more: Any
) -> Evidence:
    """Load the evidence on a run from the files in ``folder`` and ``states``, the paths
    of the final state of each rank. ``sampled``: also load sampled.pt (False for a
    replay, which has none); ``more``: other fields of :class:`Evidence`. Raises OSError
    for a missing file and UserError for a damaged one.
    """
    return Evidence(
        rows=read_jsonl(folder / "hashes.jsonl", "kind"),
        losses=list(read_csv(folder / "losses.csv", "loss")["loss"]),
        states=[load_tensors(file) for file in states],
        sampled=load_tensors(folder / "sampled.pt") if sampled else {},
        **more,
    )


@dataclass(frozen=True)
class FirstDifference:
    """First tensor (of kind ``what``) whose hash differs in two runs, and its ranks."""

    step: int
    what: What
    tensor: str
    ranks: list[int]


def of_kind(rows: Rows, kind: str) -> list[Mapping[str, Any]]:
    """Return the rows whose kind is ``kind``, in their order."""
    return [row for row in rows if row["kind"] == kind]


def hashes_of(rows: Rows) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Return the rows of kind ``tensors``, which have hashes, by (step, rank)."""
    return {(row["step"], row["rank"]): row for row in of_kind(rows, "tensors")}


def first_difference(
    run: Rows, other: Rows, whats: Sequence[What] = IN_ORDER
) -> FirstDifference | None:
    """Return the first tensor, at the steps of ``run``, whose hash differs or is in
    only one of the runs; None if there is none. The order is by step, then by kind as
    in ``whats``, then by rank, then by name as recorded.
    """
    ours, theirs = hashes_of(run), hashes_of(other)
    for step in sorted({step for step, _ in ours}):
        ranks = sorted(rank for s, rank in ours if s == step)
        for what in whats:
            differ: dict[str, list[int]] = {}
            for rank in ranks:
                mine = ours[step, rank][what]
                wanted = theirs.get((step, rank), {}).get(what, {})
                for name in dict.fromkeys([*mine, *wanted]):
                    if mine.get(name) != wanted.get(name):
                        differ.setdefault(name, []).append(rank)
            for tensor, found in differ.items():
                return FirstDifference(step, what, tensor, found)
    return None
