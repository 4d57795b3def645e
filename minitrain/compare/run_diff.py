"""Comparison of two training runs on disk: the first step and tensor that differ, the
cause, and the verdict by the tolerances of the equivalence stage.

A run records hashes at some steps, the loss of every step, the final state of every
rank, and tensors of a few steps. Entries of only one run are differences too, except
for the additional ranks of a larger world size. The verdict on one run, by its own
checks, is in analysis/verdicts.py.
"""

import csv
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from minitrain.analysis.rungs import Rung
from minitrain.compare import run_tolerance
from minitrain.compare.diagnosis import Values, cause_in_step, cause_of, locate
from minitrain.compare.difference import UNKNOWN, Cause, Difference, What, Why, why
from minitrain.compare.formats import loaded
from minitrain.compare.limits import CLOSE_ADAPTIVE, FLOAT32
from minitrain.compare.run_tolerance import FINAL, FIRST_STEPS, GRADIENTS
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import each_row, reading, require_regular
from minitrain.proof.bits import ranks_rung
from minitrain.proof.ulp import same_kind
from minitrain.train.step_record import load_tensors, sha256_tensor

RunPairVerdict = Literal["equal", "within tolerance", "undecided", "different"]
# entries by kind, step and rank: rows of hashes, losses, files of states
Entries = Mapping[tuple[str, int, int], Any]
HASHES = "hashes.jsonl"
SAMPLED = "sampled.pt"
# the kinds of its tensors whose hashes are recorded too
HASHED = {"gradients": "gradients", "after": "parameters"}
LOSSES = "losses.csv"
BATCH, TENSORS, FORWARD = "batch", "tensors", "forward"
LOSS, STATE = "loss", "state"
ROW = ("gradients", "parameters", "buffers")
KINDS = ("before", "gradients", "after")
# rounding is below this share of a loss, the mean over other samples above
LOSS_LIMIT = 1e-4
# relative errors of a step by rounding: of its length, and of its direction
ROUNDING = CLOSE_ADAPTIVE, FLOAT32.coarse_adaptive


@dataclass(frozen=True)
class TrainingRun:
    """Recorded entries of a run by kind, step and rank. ``by_design``: the reason why
    its results depend on the world size, or None; ``sampled``: tensors of a few steps,
    by STEP/KIND/NAME.
    """

    entries: Entries
    world_size: int
    by_design: Why | None
    sampled: Mapping[str, Tensor]

    @property
    def states(self) -> list[Mapping[str, Tensor]]:
        """The final state of every rank."""
        files = [one for key, one in self.entries.items() if key[0] == STATE]
        read = [read_state(file).tensors.items() for file in files]
        return [{name: loaded(tensor) for name, tensor in of} for of in read]


@dataclass
class RunsCompared:
    """The result of comparing runs A and B; the numbers count steps that both have.
    ``only_in_a`` and ``only_in_b`` list what only one has, as steps or files.

    ``first``: the first difference in recorded bits; ``losses``: pairs that differ, by
    step; ``states``: final states by file. ``rungs``: results of the tolerance checks;
    ``is_coarse``: rounding to 16 bits may explain the gradients; ``by_design``: results
    depend on world size. ``unlike_ranks``: by side, a rank that is incomplete or
    differs from rank 0; ``other_tensors``: names, shapes or dtypes differ.
    """

    world_sizes: tuple[int, int]
    num_recorded: int = 0
    num_losses: int = 0
    first: Difference | None = None
    losses: dict[int, tuple[str, str]] = field(default_factory=dict)
    states: dict[str, Comparison] = field(default_factory=dict)
    rungs: dict[str, Rung] = field(default_factory=dict)
    is_coarse: bool = False
    by_design: bool = False
    unlike_ranks: dict[str, str] = field(default_factory=dict)
    other_tensors: bool = False
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)

    @property
    def unlike_states(self) -> list[str]:
        """The files of :attr:`states` that differ."""
        return [name for name, found in self.states.items() if not found.equal]

    @property
    def loss_gap(self) -> float:
        """Return the largest relative distance of two losses of one step; 0 if all are
        equal, infinity with a NaN.
        """
        pairs = [(float(ours), float(theirs)) for ours, theirs in self.losses.values()]
        shares = [abs(x - y) / (max(abs(x), abs(y)) or 1.0) for x, y in pairs]
        # NaN has no distance to anything
        return max((s if s == s else math.inf for s in shares), default=0.0)

    @property
    def equal(self) -> bool:
        """Return whether entries that are in both runs have the same bits."""
        return not (self.first or self.losses or self.unlike_states)

    @property
    def verdict(self) -> RunPairVerdict:
        """Return the verdict by bits, or if they differ, by the tolerances."""
        if self.only_in_a or self.only_in_b or self.unlike_ranks:
            return "different"
        return "equal" if self.equal else self._by_tolerance()

    @property
    def first_decides(self) -> bool:
        """Return whether the verdict is due to ``first``, and not to ranks that differ
        within a run, or to entries of only one run.
        """
        if self.same or self.unlike_ranks or not self.first:
            return False
        only = self.only_in_a or self.only_in_b
        return not only or self._by_tolerance() == "different"

    def _by_tolerance(self) -> RunPairVerdict:
        first = self.first
        # states are recorded after the last step: if only they differ, it is damage
        other_data = first and first.what == What.DATA
        if other_data or self.other_tensors or (self.unlike_states and not first):
            return "different"
        if self.by_design:
            return "undecided"
        if first and first.why.sure:
            return "different"
        broken = [name for name, r in self.rungs.items() if r.verdict == "breach"]
        if not broken and {GRADIENTS, FINAL} <= self.rungs.keys():
            return "within tolerance" if self.loss_gap <= LOSS_LIMIT else "different"
        # rounding affects gradients first (it may be coarse) or the first step
        if first and first.what == What.GRADIENTS:
            may_be = self.is_coarse or not any("gradients" in name for name in broken)
        else:
            may_be = first is not None and first.step == 0 and FIRST_STEPS not in broken
        return "undecided" if may_be or not self.rungs else "different"

    @property
    def same(self) -> bool:
        """Return whether the verdict is ``equal`` or ``within tolerance``."""
        return self.verdict in ("equal", "within tolerance")


def is_run(path: Path) -> bool:
    """Return whether ``path`` is the folder of a training run, by its hashes."""
    return (path / HASHES).is_file()


def compare_runs(a: Path, b: Path) -> RunsCompared:
    """Compare all entries of the runs ``a`` and ``b``.

    Raises:
        UserError: hashes, losses or states cannot be read, or no step is in both.
    """
    one, two = _read(a), _read(b)
    both = [key for key in one.entries if key in two.entries]
    num = Counter(kind for kind, _, _ in both)
    if not num[TENSORS]:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    found = RunsCompared((one.world_size, two.world_size), num[TENSORS], num[LOSS])
    for kind, step, rank in both:
        ours, theirs = (run.entries[kind, step, rank] for run in (one, two))
        # the text of a loss is exact: equal text means equal bits
        if kind == LOSS and ours != theirs:
            found.losses[step] = ours, theirs
        elif kind == STATE:
            states = compare_states(read_state(ours), read_state(theirs))
            found.states[ours.name] = states
            other = states.only_in_a or states.only_in_b or states.unlike
            found.other_tensors = found.other_tensors or bool(other)
        elif kind == TENSORS and any(ours[k].keys() != theirs[k].keys() for k in ROW):
            found.other_tensors = True
    is_resized = one.world_size != two.world_size
    designed = (one.by_design or two.by_design) if is_resized else None
    found.by_design = designed is not None

    def explain(step: int, what: What, ranks: list[int]) -> Why:
        # the cause is found in the tensors that rank 0 stored at step 0
        if designed or step != 0 or not (one.sampled and two.sampled):
            return designed or UNKNOWN
        x, y = _step(one.sampled), _step(two.sampled)
        # the fault may be in A or in B
        return _most_precise(
            cause_of(what, ranks, Values([x] * one.world_size, y, []), ("A", "B")),
            cause_of(what, ranks, Values([y] * two.world_size, x, []), ("B", "A")),
        )

    rows, batches = (
        [[run.entries[key] for key in both if key[0] in kinds] for run in (one, two)]
        for kinds in ((BATCH, TENSORS), (BATCH,))
    )
    first = locate(rows[0], rows[1], explain, "A")
    # rounding at an earlier step must not hide other data
    data = locate(batches[0], batches[1], explain, "A")
    found.first = first if first and first.why.sure else data or first
    found.only_in_a, found.only_in_b = _only(one, two), _only(two, one)
    if is_resized or not found.equal:
        _compare_by_tolerance(one, two, found)
    return found


def _compare_by_tolerance(a: TrainingRun, b: TrainingRun, found: RunsCompared) -> None:
    states = a.states, b.states
    for side, run, ranks in zip("AB", (a, b), states, strict=True):
        if what := _unlike_ranks(run, ranks):
            found.unlike_ranks[side] = what
    if found.equal or found.other_tensors or not all(states):
        return
    first = found.first and (found.first.step, found.first.what)
    since = first[0] if first and first[1] == What.GRADIENTS else 0
    final = states[0][0], states[1][0]
    found.rungs = run_tolerance.rungs_between(a.sampled, b.sampled, final, since)
    found.is_coarse = run_tolerance.is_coarse(a.sampled, b.sampled, since)
    broken = [n for n, rung in found.rungs.items() if rung.verdict == "breach"]
    may_be_rounding = found.by_design or not broken or GRADIENTS in broken
    if first == (0, What.GRADIENTS) and not may_be_rounding:
        # rounding of the gradients does not explain the first step
        ours, theirs = _step(a.sampled), _step(b.sampled)
        cause = _most_precise(
            cause_in_step(ours, theirs, a.world_size, "A", ROUNDING),
            cause_in_step(theirs, ours, b.world_size, "B", ROUNDING),
        )
        if cause != UNKNOWN:
            found.first = Difference(0, What.PARAMETERS, cause)


def _unlike_ranks(run: TrainingRun, states: list[Mapping[str, Tensor]]) -> str:
    # all ranks must have the same gradients and parameters, under every strategy
    rows = {key[1:]: row for key, row in run.entries.items() if key[0] == TENSORS}
    steps = sorted({step for step, _ in rows})
    for rank in range(run.world_size):
        if lacking := [step for step in steps if (step, rank) not in rows]:
            return f"rank {rank} has no step {lacking[0]}"
        if states and (STATE, -1, rank) not in run.entries:
            return f"rank {rank} has no final state"
        for step in steps:
            if any(rows[step, rank][kind] != rows[step, 0][kind] for kind in ROW[:2]):
                return f"rank {rank} differs from rank 0 at step {step}"
    if ranks_rung(states).bytes_equal is False:
        return "their final states differ"
    last = rows[steps[-1], 0]["parameters"].items() if states else ()
    if any(n in states[0] and sha256_tensor(states[0][n]) != sha for n, sha in last):
        return f"their final state is not the state of step {steps[-1]}"
    return ""


def _most_precise(one: Why, two: Why) -> Why:
    # a bare factor is less than its origin, which only one side may show
    vague = (UNKNOWN.cause, Cause.SCALED, Cause.STEPS)
    precise = [why for why in (one, two) if why.cause not in vague]
    return next(iter(precise), two if one == UNKNOWN else one)


def _step(sampled: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found = {kind: run_tolerance.sampled_at(f"0/{kind}/", sampled) for kind in KINDS}
    # the state before also has buffers
    before = found["before"].items()
    return found | {"before": {n: t for n, t in before if n in found["after"]}}


def _read(folder: Path) -> TrainingRun:
    entries: dict[tuple[str, int, int], Any] = {}
    ranks, designed = {0}, None
    path = folder / HASHES
    with reading(path):
        for row in each_row(path, "kind"):
            kind, rank = row["kind"], row.get("rank", -1)
            if kind in (BATCH, TENSORS):
                # these expressions raise if a value is missing or of a wrong type
                range(row["step"], rank)
                if kind == BATCH:
                    row["sha256"], range(row["repeated"]), [*row["ranks"]]
                else:
                    [dict.items(row[name]) for name in ROW]
                if entries.setdefault((kind, row["step"], rank), row) is not row:
                    raise ValueError("a step is duplicated")
                ranks |= {rank, *range(len(row.get("ranks", ())))}
            elif kind == FORWARD and row["draws_random_numbers"]:
                designed = why(Cause.DRAWN)
            elif kind == FORWARD and row["changes_buffers"]:
                designed = designed or why(Cause.BATCH_NORM)
    path = folder / LOSSES
    if path.exists():
        with reading(path), open(require_regular(path), encoding="utf-8") as file:
            losses = {int(row["step"]): row["loss"] for row in csv.DictReader(file)}
            [*map(float, losses.values())]
        entries |= {(LOSS, step, -1): loss for step, loss in losses.items()}
    for path in sorted((folder / "states").glob("state-rank-*.pt")):
        rank = path.stem.removeprefix("state-rank-")
        if rank.isdecimal():
            entries[STATE, -1, int(rank)] = path
    path = folder / SAMPLED
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
            recorded = entries[TENSORS, int(step), 0][HASHED[kind]]
            fits = sha256_tensor(tensor) == recorded[name]
        if not fits:
            raise ValueError(f"tensor {full} is not the recorded one")


def _only(mine: TrainingRun, other: TrainingRun) -> list[str]:
    theirs = other.entries
    ranks = {rank for kind, _, rank in theirs if kind == TENSORS}
    only = []
    for kind, step, rank in sorted(mine.entries.keys() - theirs.keys()):
        if rank >= other.world_size:
            continue
        name = f"the {kind} of step {step}"
        if kind == STATE:
            name = f"states/{mine.entries[kind, step, rank].name}"
        elif kind == TENSORS:
            name = f"step {step} of rank {rank}" if rank in ranks else f"rank {rank}"
        only.append(name)
    return [*dict.fromkeys(only)]
