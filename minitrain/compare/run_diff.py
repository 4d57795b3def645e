"""Two training runs on disk: the first step and tensor that differ, and why.

What is there is what the runs recorded: hashes at some steps, the loss of every step,
the final state of every rank, and the gradients of the first step. What only one of
them has is a difference like any other.
"""

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from minitrain.compare.diagnosis import Values, cause_of, locate
from minitrain.compare.difference import UNKNOWN, Difference, What, Why
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import read_jsonl
from minitrain.core.regular import require_regular
from minitrain.train.step_record import load_tensors

# what a run has, by kind, step and rank: rows of hashes, losses; files of states
Run = Mapping[tuple[str, int, int], Any]
HASHES = "hashes.jsonl"
SAMPLED = "sampled.pt"
LOSSES = "losses.csv"
BATCH, TENSORS, LOSS = "batch", "tensors", "loss"
KINDS = ("before", "gradients", "after")


@dataclass(frozen=True)
class RunsCompared:
    """What differs between runs A and B; ``equal`` where nothing does.

    ``first`` is the first difference in what both recorded, ``losses`` the first loss
    that differs, ``states`` the final states that do, by file. The counts are of what
    both have.
    """

    first: Difference | None
    losses: str | None
    states: dict[str, Comparison]
    only_in_a: list[str]
    only_in_b: list[str]
    num_recorded: int
    num_losses: int
    num_states: int

    @property
    def equal(self) -> bool:
        """Whether both have the same things, every bit of them alike."""
        both = self.first or self.losses or self.unlike_states
        return not (both or self.only_in_a or self.only_in_b)

    @property
    def unlike_states(self) -> list[str]:
        """The files of :attr:`states` that differ."""
        return [name for name, found in self.states.items() if not found.equal]


def is_run(path: Path) -> bool:
    """Whether ``path`` is a folder in which a run recorded something."""
    return (path / HASHES).is_file()


def compare_runs(a: Path, b: Path) -> RunsCompared:
    """Compare all that runs ``a`` and ``b`` recorded.

    Raises UserError for a folder without readable hashes, losses or states, and for
    runs that have no recorded step in common.
    """
    runs = [_read(folder) for folder in (a, b)]
    both = [key for key in runs[0] if key in runs[1]]
    num = Counter(kind for kind, _, _ in both)
    if not num[TENSORS]:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    # losses are written so that equal text is equal bits
    losses = [
        f"step {key[1]}: {runs[0][key]} against {runs[1][key]}"
        for key in both
        if key[0] == LOSS and runs[0][key] != runs[1][key]
    ]
    states = {
        runs[0][key].name: compare_states(*(read_state(run[key]) for run in runs))
        for key in both
        if isinstance(runs[0][key], Path)
    }
    world_size = 1 + max(rank for _, _, rank in runs[0])
    rows = [[of[key] for key in both if key[0] in (BATCH, TENSORS)] for of in runs]
    return RunsCompared(
        first=locate(rows[0], rows[1], partial(_explain, a, b, world_size), "A"),
        losses=losses[0] if losses else None,
        states=states,
        only_in_a=_only(runs[0], runs[1]),
        only_in_b=_only(runs[1], runs[0]),
        num_recorded=num[TENSORS],
        num_losses=num[LOSS],
        num_states=len(states),
    )


def _explain(
    a: Path, b: Path, world_size: int, step: int, what: What, ranks: list[int]
) -> Why:
    # from the tensors that rank 0 of both kept of step 0
    kept = [folder / SAMPLED for folder in (a, b)]
    if step != 0 or not all(map(Path.exists, kept)):
        return UNKNOWN
    ours, theirs = (_step(load_tensors(path)) for path in kept)
    return cause_of(what, ranks, Values([ours] * world_size, theirs, []), ("A", "B"))


def _step(sampled: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    for full, tensor in sampled.items():
        step, kind, name = full.split("/", 2)
        if step == "0" and kind in found:
            found[kind][name] = tensor
    # of the state before, what is a parameter
    before = found["before"].items()
    return found | {"before": {n: t for n, t in before if n in found["after"]}}


def _read(folder: Path) -> Run:
    path = folder / HASHES
    try:
        rows = [
            row
            for row in read_jsonl(require_regular(path))
            if row["kind"] in (BATCH, TENSORS)
        ]
        found: dict[tuple[str, int, int], Any] = {
            (row["kind"], row["step"], row.get("rank", -1)): row for row in rows
        }
        if len(found) < len(rows):
            raise ValueError("a step is duplicated")
    except FileNotFoundError:
        raise UserError(f"{folder}: is no training run, it has no {HASHES}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not the hashes of a run: {error}") from None
    path = folder / LOSSES
    if path.exists():
        try:
            with open(require_regular(path), encoding="utf-8", newline="") as file:
                losses = {int(row["step"]): row["loss"] for row in csv.DictReader(file)}
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise UserError(f"{path}: not the losses of a run: {error}") from None
        found |= {(LOSS, step, -1): loss for step, loss in losses.items()}
    states = sorted((folder / "states").glob("*.pt"))
    return found | {(f"states/{path.name}", -1, -1): path for path in states}


def _only(mine: Run, theirs: Run) -> list[str]:
    ranks = {rank for kind, _, rank in theirs if kind == TENSORS}
    only = []
    for kind, step, rank in sorted(mine.keys() - theirs.keys()):
        name = kind if step < 0 else f"the {kind} of step {step}"
        if kind == TENSORS:
            name = f"step {step} of rank {rank}" if rank in ranks else f"rank {rank}"
        only.append(name)
    return [*dict.fromkeys(only)]
