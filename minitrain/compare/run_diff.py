"""Two training runs on disk: the first step and tensor that differ, and why.

What is there is what the runs recorded: hashes at some steps, the loss of every step,
the final state of every rank, and the gradients of the first step. Whatever only one of
them has is a difference like any other.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from minitrain.compare.diagnosis import (
    UNKNOWN,
    Divergence,
    What,
    cause_of_pair,
    cause_of_steps,
    locate,
)
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import read_jsonl
from minitrain.core.regular import require_regular
from minitrain.train.recorder import load_tensors

Row = Mapping[str, Any]
Key = tuple[str, int, int]
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
    rows_a, rows_b = (_read(folder) for folder in (a, b))
    keys = [_keys(rows) for rows in (rows_a, rows_b)]
    shared = keys[0] & keys[1]
    num_recorded = sum(kind == TENSORS for kind, _, _ in shared)
    if not num_recorded:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    ours, theirs = (
        [row for row in rows if _key(row) in shared] for rows in (rows_a, rows_b)
    )
    losses = [_read_losses(folder) for folder in (a, b)]
    files = [{path.name for path in (x / STATES).glob("*.pt")} for x in (a, b)]
    states = {
        name: compare_states(*(read_state(x / STATES / name) for x in (a, b)))
        for name in sorted(files[0] & files[1])
    }
    only = [
        _rows_only_here(keys[here], keys[1 - here])
        + _losses_only_here(losses[here], losses[1 - here])
        + [f"{STATES}/{name}" for name in sorted(files[here] - files[1 - here])]
        for here in (0, 1)
    ]
    world_size = 1 + max(row["rank"] for row in rows_a if row["kind"] == TENSORS)
    return RunsCompared(
        first=locate(ours, theirs, partial(_explain, a, b, world_size)),
        losses=_first_loss(*losses),
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
    """The cause, as far as the tensors that rank 0 of both kept of step 0 tell it."""
    kept = [folder / SAMPLED for folder in (a, b)]
    if step != 0 or not all(map(Path.exists, kept)):
        return UNKNOWN
    ours, theirs = map(load_tensors, kept)
    if what == "gradients":
        pair = (_of(ours, "gradients"), _of(theirs, "gradients"))
        return cause_of_pair(*pair, ranks, world_size)
    if what == "parameters" and 0 in ranks:
        return cause_of_steps(*map(_step, (ours, theirs)))
    return UNKNOWN


def _step(sampled: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    after = _of(sampled, "after")
    # of the state before, what is a parameter
    before = {n: t for n, t in _of(sampled, "before").items() if n in after}
    return {"before": before, "after": after}


def _of(sampled: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    start = f"0/{kind}/"
    return {n.removeprefix(start): t for n, t in sampled.items() if n.startswith(start)}


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / HASHES
    try:
        rows = read_jsonl(require_regular(path))
        # what the comparison will look up
        _keys(rows)
    except FileNotFoundError:
        raise UserError(f"{folder}: is no training run, it has no {HASHES}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not the hashes of a run: {error}") from None
    return rows


def _keys(rows: list[dict[str, Any]]) -> set[Key]:
    keys = [_key(row) for row in rows if row["kind"] in (BATCH, TENSORS)]
    if len(keys) != len({*keys}):
        raise ValueError("a step is duplicated")
    return {*keys}


def _key(row: Row) -> Key:
    return row["kind"], row.get("step", -1), row.get("rank", -1)


def _rows_only_here(mine: set[Key], theirs: set[Key]) -> list[str]:
    """Ranks of which the other run has nothing; of the rest, steps and batches."""
    ranks = [
        {rank for kind, _, rank in keys if kind == TENSORS} for keys in (mine, theirs)
    ]
    found = [f"rank {rank}" for rank in sorted(ranks[0] - ranks[1])]
    for rank in sorted(ranks[0] & ranks[1]):
        steps = [s for kind, s, r in mine - theirs if (kind, r) == (TENSORS, rank)]
        found += [f"step {step} of rank {rank}" for step in sorted(steps)]
    batches = [step for kind, step, _ in mine - theirs if kind == BATCH]
    return found + [f"the batch of step {step}" for step in sorted(batches)]


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


def _first_loss(ours: dict[int, str], theirs: dict[int, str]) -> str | None:
    for step in sorted(ours.keys() & theirs.keys()):
        # written so that equal text is equal bits
        if ours[step] != theirs[step]:
            return f"step {step}: {ours[step]} against {theirs[step]}"
    return None
