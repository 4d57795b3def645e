"""Comparison of two training runs on disk: the first step and tensor that differ, the
cause, and the verdict.

Entries of only one run are differences too; rank 0 of the run with fewer processes
stands for the ranks that it lacks. Runs that differ in bits may be within tolerances
(run_tolerance.py). The verdict on one run, by its own checks, is in
analysis/verdicts.py.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from minitrain.analysis.rungs import CheckVerdict, Rung
from minitrain.compare.diagnosis import Values, cause_of, locate
from minitrain.compare.difference import UNKNOWN, Cause, Difference, What, Why, why
from minitrain.compare.run_tolerance import FINAL, rungs_between, sampled_at
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import each_row, reading, require_regular
from minitrain.train.step_record import load_tensors

RunPairVerdict = Literal["equal", "within tolerance", "undecided", "different"]
# rounding is below this share of a loss, the mean over other samples above
LOSS_LIMIT = 1e-4
# a factor alone is less than its origin, which only one side may show
VAGUE = (UNKNOWN.cause, Cause.SCALED, Cause.STEPS)
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
        kinds = ("before", "gradients", "after")
        found = {kind: sampled_at(f"0/{kind}/", self.sampled) for kind in kinds}
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


@dataclass
class RunsCompared:
    """The result of comparing runs A and B; the numbers count steps that both have.
    ``only_in_a`` and ``only_in_b`` list what only one has, as steps or files.

    ``first``: the first difference in bits if it is sure, else in data, else in bits;
    ``losses``: pairs that differ, by step; ``states``: final states by file;
    ``other_tensors``: names, shapes or dtypes differ; ``rungs``: checks by tolerances.
    """

    world_sizes: tuple[int, int]
    num_recorded: int
    num_losses: int
    first: Difference | None = None
    losses: dict[int, tuple[str, str]] = field(default_factory=dict)
    states: dict[str, Comparison] = field(default_factory=dict)
    other_tensors: bool = False
    rungs: dict[str, Rung] = field(default_factory=dict)
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> RunPairVerdict:
        """The verdict: by what one run lacks, by bits, by cause, then by tolerances."""
        if self.only_in_a or self.only_in_b or self.other_tensors:
            return "different"
        if self.equal:
            return "equal"
        if first := self.first:
            is_sure = first.what == What.DATA or first.why.sure
        else:
            # states are recorded after the last step: if only they differ, it is damage
            is_sure = bool(self.unlike_states) or self.loss_gap > LOSS_LIMIT
        if is_sure:
            return "different"
        # checks end with the first breach, so the last one is there if others hold
        final = self.rungs.get(FINAL)
        if final is None or final.verdict is CheckVerdict.BREACH:
            return "undecided"
        return "within tolerance" if self.loss_gap <= LOSS_LIMIT else "different"

    @property
    def same(self) -> bool:
        """Return whether the verdict is ``equal`` or ``within tolerance``."""
        return self.verdict in ("equal", "within tolerance")

    @property
    def equal(self) -> bool:
        """Return whether entries that are in both runs have the same bits."""
        return not (self.first or self.losses or self.unlike_states)

    @property
    def unlike_states(self) -> list[str]:
        """The files of :attr:`states` that differ."""
        return [name for name, found in self.states.items() if not found.equal]

    @property
    def loss_gap(self) -> float:
        """Return the largest relative distance of two losses of a step (0 if none)."""
        pairs = [(float(ours), float(theirs)) for ours, theirs in self.losses.values()]
        shares = [abs(x - y) / (max(abs(x), abs(y)) or 1.0) for x, y in pairs]
        # NaN has no distance to anything
        return max((s if s == s else math.inf for s in shares), default=0.0)


def compare_runs(a: Path, b: Path) -> RunsCompared:
    """Compare all entries of the runs ``a`` and ``b``; raises UserError if hashes,
    losses or states cannot be read, or no step is in both.
    """
    runs = read_run(a), read_run(b)
    sizes = runs[0].world_size, runs[1].world_size
    one, two = (run.widened(max(sizes)) for run in runs)
    rows, losses = _in_both(one, two, "tensors"), _in_both(one, two, "loss")
    if not rows:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    found = RunsCompared(sizes, len(rows), len(losses))
    found.only_in_a, found.only_in_b = two.lacks(one), one.lacks(two)
    # the text of a loss is exact: equal text means equal bits
    found.losses = {step: (x, y) for (_, step, _), x, y in losses if x != y}
    unlike = any(x[k].keys() != y[k].keys() for _, x, y in rows for k in ROW)
    states = _in_both(one, two, "state")
    for (_, _, rank), x, y in states:
        state = compare_states(read_state(x), read_state(y))
        found.states[f"state-rank-{rank}.pt"] = state
        unlike = unlike or bool(state.only_in_a or state.only_in_b or state.unlike)
    found.other_tensors = unlike
    designed = (one.by_design or two.by_design) if sizes[0] != sizes[1] else None
    found.first = first = _first(one, two, designed)
    if found.verdict == "undecided" and states and not designed:
        since = first.step if first and first.what == What.GRADIENTS else 0
        final = load_tensors(states[0][1]), load_tensors(states[0][2])
        found.rungs = rungs_between(one.sampled, two.sampled, final, since)
    return found


def _in_both(a: TrainingRun, b: TrainingRun, kind: str) -> list[tuple[Any, Any, Any]]:
    # the entries of a kind that both runs have, with their keys
    keys = [key for key in a.entries if key[0] == kind and key in b.entries]
    return [(key, a.entries[key], b.entries[key]) for key in keys]


def _first(a: TrainingRun, b: TrainingRun, designed: Why | None) -> Difference | None:
    def explain(step: int, what: What, ranks: list[int]) -> Why:
        for run in (a, b) if what != What.BUFFERS else ():
            if apart := run.ranks_apart(step, what):
                return why(Cause.ALONE, ranks=apart)
        # the cause is found in the tensors that rank 0 stored at step 0
        if designed or step != 0 or not (a.sampled and b.sampled):
            return designed or UNKNOWN
        # the fault may be in A or in B
        causes = []
        for run, other, sides in ((a, b, ("A", "B")), (b, a, ("B", "A"))):
            within = [rank for rank in ranks if rank < run.world_size]
            ours = [run.first_step] * run.world_size
            values = Values(ours, other.first_step, [])
            causes.append(cause_of(what, within, values, sides))
        return max(causes, key=lambda one: one.cause not in VAGUE)

    batches = _in_both(a, b, "batch")
    first, data = (
        locate([x for _, x, _ in rows], [y for _, _, y in rows], explain, "A")
        for rows in (batches + _in_both(a, b, "tensors"), batches)
    )
    # rounding at an earlier step must not hide other data
    return first if first and first.why.sure else data or first
