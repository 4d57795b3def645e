"""Training runs on disk: hashes and tensors of some steps, losses, final states."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minitrain.compare.difference import Cause, Why, why
from minitrain.compare.formats import loaded
from minitrain.compare.run_tolerance import Tensors, sampled_at
from minitrain.compare.states import read_state
from minitrain.core.files import each_row, reading, require_regular
from minitrain.proof.ulp import same_kind
from minitrain.train.step_record import load_tensors, sha256_tensor

# by kind, step and rank: rows of hashes (batch, tensors), texts (loss), files (state)
Entries = Mapping[tuple[str, int, int], Any]
HASHES = "hashes.jsonl"
# what a row of tensors has, and the kinds of sampled tensors of which it has hashes
ROW = ("gradients", "parameters", "buffers")
HASHED = {"gradients": "gradients", "after": "parameters"}


@dataclass(frozen=True)
class TrainingRun:
    """Entries of a run by kind, step and rank. ``by_design``: why its results depend on
    the world size, or None; ``sampled``: tensors of a few steps, by STEP/KIND/NAME.
    """

    entries: Entries
    world_size: int
    by_design: Why | None
    sampled: Tensors

    @property
    def states(self) -> list[Tensors]:
        """The final state of every rank."""
        files = [one for key, one in self.entries.items() if key[0] == "state"]
        read = [read_state(file).tensors.items() for file in files]
        return [{name: loaded(tensor) for name, tensor in of} for of in read]

    @property
    def first_step(self) -> Mapping[str, Tensors]:
        """The sampled tensors of step 0: parameters before and after, gradients."""
        kinds = ("before", "gradients", "after")
        found = {kind: sampled_at(f"0/{kind}/", self.sampled) for kind in kinds}
        # the state before also has buffers
        before = found["before"].items()
        return found | {"before": {n: t for n, t in before if n in found["after"]}}

    def lacks(self, other: "TrainingRun") -> list[str]:
        """Return entries that only ``other`` has, but for ranks beyond this run's."""
        held = {rank for kind, _, rank in self.entries if kind == "tensors"}
        names, keys = [], sorted(other.entries.keys() - self.entries.keys())
        for kind, step, rank in (key for key in keys if key[2] < self.world_size):
            name = f"the {kind} of step {step}"
            if kind == "state":
                name = f"states/{other.entries[kind, step, rank].name}"
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
    sampled = load_tensors(path) if path.exists() else {}
    with reading(path):
        _require_recorded(sampled, entries)
    return TrainingRun(entries, 1 + max(ranks), designed, sampled)


def _require_recorded(sampled: Any, entries: Entries) -> None:
    # the tensors are by STEP/KIND/NAME, and have the hashes that are recorded
    for full, tensor in sampled.items():
        step, kind, name = full.split("/", 2)
        after = sampled.get(f"{step}/after/{name}", tensor)
        fits = isinstance(tensor, Tensor) and same_kind(tensor, after)
        if fits and kind in HASHED and step.isdecimal():
            recorded = entries["tensors", int(step), 0][HASHED[kind]]
            fits = sha256_tensor(tensor) == recorded[name]
        if not fits:
            raise ValueError(f"tensor {full} is not the recorded one")
