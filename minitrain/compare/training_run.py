"""Training runs on disk: hashes and tensors of some steps, losses, final states."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from minitrain.compare.difference import Cause, Why, why
from minitrain.core.files import each_row, reading, require_regular
from minitrain.train.step_record import load_tensors

# by kind, step and rank: rows of hashes (batch, tensors), texts (loss), files (state)
Entries = Mapping[tuple[str, int, int], Any]
HASHES = "hashes.jsonl"
# the hashes in a row of tensors
ROW = ("gradients", "parameters", "buffers")


@dataclass(frozen=True)
class TrainingRun:
    """Entries of a run by kind, step and rank. ``by_design``: why its results depend on
    the world size, or None; ``sampled``: tensors of a few steps, by STEP/KIND/NAME.
    """

    entries: Entries
    world_size: int
    by_design: Why | None
    sampled: Mapping[str, Tensor]

    @property
    def first_step(self) -> dict[str, dict[str, Tensor]]:
        """The sampled tensors of step 0: parameters before and after, gradients."""
        sampled, found = sorted(self.sampled.items()), {}
        for kind in ("before", "gradients", "after"):
            start = f"0/{kind}/"
            of = {n.removeprefix(start): t for n, t in sampled if n.startswith(start)}
            found[kind] = of
        # the state before also has buffers
        before = found["before"].items()
        return found | {"before": {n: t for n, t in before if n in found["after"]}}

    def ranks_apart(self, step: int, kind: str) -> list[int]:
        """Return the ranks whose gradients or parameters (``kind``) are not those of
        rank 0: every strategy leaves the same ones on all ranks.
        """
        rows = [self.entries.get(("tensors", step, r)) for r in range(self.world_size)]
        held = [row and row[kind] for row in rows]
        return [rank for rank, one in enumerate(held) if one and one != held[0]]

    def widened(self, world_size: int) -> "TrainingRun":
        """Return the run with entries of rank 0, which has the gradients and parameters
        of all ranks, for the ranks that ``world_size`` adds.
        """
        more = {}
        for (kind, step, rank), one in self.entries.items():
            for other in range(self.world_size, world_size) if rank == 0 else ():
                same = one | {"rank": other} if kind == "tensors" else one
                more[kind, step, other] = same
        return replace(self, entries={**self.entries, **more})

    def lacks(self, other: "TrainingRun") -> list[str]:
        """Return entries that only ``other`` has."""
        held = {rank for kind, _, rank in self.entries if kind == "tensors"}
        names = []
        for kind, step, rank in sorted(other.entries.keys() - self.entries.keys()):
            name = f"the {kind} of step {step}"
            if kind == "state":
                name = f"states/state-rank-{rank}.pt"
            elif kind == "tensors":
                name = f"step {step} of rank {rank}" if rank in held else f"rank {rank}"
            names.append(name)
        return [*dict.fromkeys(names)]


def is_run(path: Path) -> bool:
    """Return whether ``path`` is the folder of a training run, by its hashes."""
    return (path / HASHES).is_file()


def read_run(folder: Path) -> TrainingRun:
    """Read the training run in ``folder``; raises UserError for a damaged file."""
    entries: dict[tuple[str, int, int], Any] = {}
    ranks, designed = {0}, None
    path = folder / HASHES
    with reading(path):
        for row in each_row(path, "kind"):
            kind, rank = row["kind"], row.get("rank", -1)
            if kind in ("batch", "tensors"):
                # these expressions raise if a value is missing or of a wrong type
                range(row["step"], rank)
                if kind == "batch":
                    row["sha256"], range(row["repeated"]), [*row["ranks"]]
                else:
                    [dict.items(row[name]) for name in ROW]
                if entries.setdefault((kind, row["step"], rank), row) is not row:
                    raise ValueError("a step is duplicated")
                ranks |= {rank, *range(len(row.get("ranks", ())))}
            elif kind == "forward" and row["draws_random_numbers"]:
                designed = why(Cause.DRAWN)
            elif kind == "forward" and row["changes_buffers"]:
                designed = designed or why(Cause.BATCH_NORM)
    path = folder / "losses.csv"
    if path.exists():
        with reading(path), open(require_regular(path), encoding="utf-8") as file:
            losses = {int(row["step"]): row["loss"] for row in csv.DictReader(file)}
            [*map(float, losses.values())]
        entries |= {("loss", step, -1): loss for step, loss in losses.items()}
    for path in sorted((folder / "states").glob("state-rank-*.pt")):
        number = path.stem.removeprefix("state-rank-")
        if number.isdecimal():
            entries["state", -1, int(number)] = path
    path = folder / "sampled.pt"
    with reading(path):
        sampled = {**load_tensors(path)} if path.exists() else {}
    return TrainingRun(entries, 1 + max(ranks), designed, sampled)
