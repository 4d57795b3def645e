"""Evidence on a run, its replay or one process: the input of a ladder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minitrain.core.files import read_csv, read_jsonl
from minitrain.proof.bits import Rows, Tensors
from minitrain.train.step_record import TrainResult, load_tensors, mean_losses, rows_of


@dataclass(frozen=True)
class Evidence:
    """Hash ``rows``, the loss of every step, the final state of every rank, ``sampled``
    tensors by STEP/KIND/NAME, the initial state, each rank's ``values`` of a step that
    was kept, and ``results`` if in memory. The ``unit`` of a perturbed run is one ULP
    of 1.0 in its coarsest type.
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
        """Synchronized gradients of step 0, before the optimizer."""
        return self._of("0/gradients/")

    @property
    def early(self) -> Tensors:
        """State after the third step; empty if there were fewer."""
        return self._of("early/state/")

    def _of(self, prefix: str) -> Tensors:
        sampled = self.sampled.items()
        return {k.removeprefix(prefix): t for k, t in sampled if k.startswith(prefix)}


def evidence_of(
    results: Sequence[TrainResult], states: Sequence[Tensors], **more: Any
) -> Evidence:
    """Collect the evidence on a run in memory from the results of its ranks."""
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
    """Read the evidence on a run from ``folder`` and its ``states``, a file per rank.
    Set ``sampled`` to False for a replay; ``more`` are further fields. Raises OSError
    for a missing file and UserError for a damaged one.
    """
    return Evidence(
        rows=read_jsonl(folder / "hashes.jsonl", "kind"),
        losses=list(read_csv(folder / "losses.csv", "loss")["loss"]),
        states=[load_tensors(file) for file in states],
        sampled=load_tensors(folder / "sampled.pt") if sampled else {},
        **more,
    )
