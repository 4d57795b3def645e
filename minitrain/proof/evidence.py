"""What a run left, or its replay, or one process: all that a ladder looks at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minitrain.core.files import read_csv, read_jsonl
from minitrain.proof.bits import Tensors
from minitrain.proof.first_difference import Rows
from minitrain.train.step_record import TrainResult, load_tensors, mean_losses, rows_of


@dataclass(frozen=True)
class Evidence:
    """Rows of hashes, the loss of every step, the final state of every rank, tensors
    ``sampled`` by STEP/KIND/NAME, the state at the start, of a step that was kept the
    ``values`` of each rank, and ``results`` if in memory. A twin has the ``unit`` in
    the last place of 1 in the coarsest type that it computed in.
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
        """The first rank's final state."""
        return self.states[0]

    @property
    def gradients(self) -> Tensors:
        """The synchronized gradients of step 0, before the optimizer."""
        return self._of("0/gradients/")

    @property
    def early(self) -> Tensors:
        """The state after the third step; empty where there were fewer."""
        return self._of("early/state/")

    def _of(self, prefix: str) -> Tensors:
        sampled = self.sampled.items()
        return {k.removeprefix(prefix): t for k, t in sampled if k.startswith(prefix)}


def evidence_of(
    results: Sequence[TrainResult], states: Sequence[Tensors], **more: Any
) -> Evidence:
    """Collect what each rank of a run in memory recorded, and its state."""
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
    """Read the evidence of a run in ``folder``; ``states`` are the files of the ranks.
    A replay has nothing ``sampled``; ``more`` are other fields. Raises OSError for a
    file that is missing, UserError for one that is damaged.
    """
    return Evidence(
        rows=read_jsonl(folder / "hashes.jsonl", "kind"),
        losses=list(read_csv(folder / "losses.csv", "loss")["loss"]),
        states=[load_tensors(file) for file in states],
        sampled=load_tensors(folder / "sampled.pt") if sampled else {},
        **more,
    )
