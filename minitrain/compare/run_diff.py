"""Two training runs on disk: the first step and tensor that differ, and why.

What is there is what the runs recorded: hashes at some steps, the loss of every step,
the final state of every rank, and the gradients of the first step. What only one of
them has is a difference like any other.
"""

import csv
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from minitrain.compare.causes import UNKNOWN
from minitrain.compare.diagnosis import (
    Divergence,
    What,
    cause_in_step,
    cause_of_pair,
    locate,
)
from minitrain.compare.difference import NOT_RESTORED, SETTINGS
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import read_jsonl
from minitrain.core.regular import require_regular
from minitrain.train.step_record import load_tensors

Key = tuple[str, int, int]
Rows = dict[Key, dict[str, Any]]
HASHES = "hashes.jsonl"
SAMPLED = "sampled.pt"
LOSSES = "losses.csv"
STATES = "states"
BATCH, TENSORS = "batch", "tensors"


@dataclass(frozen=True)
class RunsCompared:
    """What differs between runs A and B; ``equal`` where nothing does.

    ``first`` is the first difference in what both recorded, ``losses`` the first loss
    that differs, ``states`` the final states that do, by file. The counts are of what
    both have.
    """

    first: Divergence | None
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
    rows = [_read(folder) for folder in (a, b)]
    shared = [key for key in rows[0] if key in rows[1]]
    num_recorded = sum(kind == TENSORS for kind, _, _ in shared)
    if not num_recorded:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    losses = [_read_losses(folder) for folder in (a, b)]
    files = [{path.name for path in (x / STATES).glob("*.pt")} for x in (a, b)]
    states = {
        name: compare_states(*(read_state(x / STATES / name) for x in (a, b)))
        for name in sorted(files[0] & files[1])
    }
    only = [
        _rows_only_here(rows[here].keys(), rows[1 - here].keys())
        + _losses_only_here(losses[here], losses[1 - here])
        + [f"{STATES}/{name}" for name in sorted(files[here] - files[1 - here])]
        for here in (0, 1)
    ]
    world_size = 1 + max(rank for _, _, rank in rows[0])
    # losses are written so that equal text is equal bits
    unlike = [
        f"step {step}: {losses[0][step]} against {losses[1][step]}"
        for step in sorted(losses[0].keys() & losses[1].keys())
        if losses[0][step] != losses[1][step]
    ]
    ours, theirs = ([of[key] for key in shared] for of in rows)
    return RunsCompared(
        first=locate(ours, theirs, partial(_explain, a, b, world_size)),
        losses=unlike[0] if unlike else None,
        states=states,
        only_in_a=only[0],
        only_in_b=only[1],
        num_recorded=num_recorded,
        num_losses=len(losses[0].keys() & losses[1].keys()),
        num_states=len(states),
    )


def _explain(
    a: Path, b: Path, world_size: int, step: int, what: What, ranks: list[int]
) -> str:
    # as far as the tensors that rank 0 of both kept of step 0 tell it
    kept = [folder / SAMPLED for folder in (a, b)]
    if step != 0 or not all(map(Path.exists, kept)):
        return UNKNOWN
    ours, theirs = map(load_tensors, kept)
    if what == "gradients":
        pair = _of(ours, "gradients"), _of(theirs, "gradients")
        return cause_of_pair(*pair, ranks, world_size)
    if what == "parameters" and 0 in ranks:
        otherwise = f"{NOT_RESTORED}, or {SETTINGS}"
        return cause_in_step(_step(ours), _step(theirs), world_size, otherwise)
    return UNKNOWN


def _step(sampled: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    before, after = (_of(sampled, when) for when in ("before", "after"))
    # of the state before, what is a parameter
    return {"before": {n: before[n] for n in after if n in before}, "after": after}


def _of(sampled: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    start = f"0/{kind}/"
    return {n.removeprefix(start): t for n, t in sampled.items() if n.startswith(start)}


def _read(folder: Path) -> Rows:
    path = folder / HASHES
    try:
        rows = read_jsonl(require_regular(path))
        found = {
            (row["kind"], row.get("step", -1), row.get("rank", -1)): row
            for row in rows
            if row["kind"] in (BATCH, TENSORS)
        }
        if len(found) < sum(row["kind"] in (BATCH, TENSORS) for row in rows):
            raise ValueError("a step is duplicated")
    except FileNotFoundError:
        raise UserError(f"{folder}: is no training run, it has no {HASHES}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not the hashes of a run: {error}") from None
    return found


def _rows_only_here(mine: Set[Key], theirs: Set[Key]) -> list[str]:
    # ranks of which the other run has nothing; of the rest, steps and batches
    ranks = [
        {rank for kind, _, rank in keys if kind == TENSORS} for keys in (mine, theirs)
    ]
    steps = sorted((rank, step, kind) for kind, step, rank in mine - theirs)
    both = ranks[0] & ranks[1]
    return [
        *(f"rank {rank}" for rank in sorted(ranks[0] - ranks[1])),
        *(
            f"step {s} of rank {r}"
            for r, s, kind in steps
            if kind == TENSORS and r in both
        ),
        *(f"the batch of step {s}" for _, s, kind in steps if kind == BATCH),
    ]


def _read_losses(folder: Path) -> dict[int, str]:
    path = folder / LOSSES
    if not path.exists():
        return {}
    try:
        with open(require_regular(path), encoding="utf-8", newline="") as file:
            return {int(row["step"]): row["loss"] for row in csv.DictReader(file)}
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path}: not the losses of a run: {error}") from None


def _losses_only_here(mine: dict[int, str], theirs: dict[int, str]) -> list[str]:
    if mine and not theirs:
        return [LOSSES]
    return [f"the loss of step {step}" for step in sorted(mine.keys() - theirs.keys())]
