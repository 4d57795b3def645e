"""Comparison of two training runs on disk: the first step and tensor that differ, the
cause, and the verdict by the tolerances of the equivalence stage.

Entries of only one run are differences too, except for the additional ranks of a larger
world size. The verdict on one run, by its own checks, is in analysis/verdicts.py.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from minitrain.analysis.rungs import Rung
from minitrain.compare import run_tolerance
from minitrain.compare.diagnosis import Values, cause_in_step, cause_of, locate
from minitrain.compare.difference import UNKNOWN, Cause, Difference, What, Why
from minitrain.compare.limits import CLOSE_ADAPTIVE, FLOAT32
from minitrain.compare.run_tolerance import FINAL, FIRST_STEPS, GRADIENTS, Tensors
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.compare.training_run import ROW, TrainingRun, read_run
from minitrain.core.errors import UserError
from minitrain.proof.bits import ranks_rung
from minitrain.train.step_record import sha256_tensor

RunPairVerdict = Literal["equal", "within tolerance", "undecided", "different"]
# rounding is below this share of a loss, the mean over other samples above
LOSS_LIMIT = 1e-4
# relative errors of a step by rounding: of its length, and of its direction
ROUNDING = CLOSE_ADAPTIVE, FLOAT32.coarse_adaptive


@dataclass
class RunsCompared:
    """The result of comparing runs A and B; the numbers count steps that both have.
    ``only_in_a`` and ``only_in_b`` list what only one has, as steps or files.

    ``first``: the first difference in recorded bits, unless data, or the first step by
    more than rounding, differ; ``losses``: pairs that differ, by
    step; ``states``: final states by file. ``rungs``: results of the tolerance checks;
    ``is_coarse``: rounding to 16 bits may explain the gradients; ``by_design``: why
    results depend on world size. ``unlike_ranks``: by side, a rank that is incomplete
    or differs from rank 0; ``other_tensors``: names, shapes or dtypes differ.
    """

    world_sizes: tuple[int, int]
    num_recorded: int
    num_losses: int
    by_design: Why | None
    first: Difference | None = None
    losses: dict[int, tuple[str, str]] = field(default_factory=dict)
    states: dict[str, Comparison] = field(default_factory=dict)
    rungs: dict[str, Rung] = field(default_factory=dict)
    is_coarse: bool = False
    unlike_ranks: dict[str, str] = field(default_factory=dict)
    other_tensors: bool = False
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> RunPairVerdict:
        """The verdict: by what one run lacks, by bits, by cause, then by tolerances."""
        first = self.first
        broken = [name for name, r in self.rungs.items() if r.verdict == "breach"]
        if self.only_in_a or self.only_in_b or self.unlike_ranks:
            return "different"
        if self.equal:
            return "equal"
        if self.other_tensors or (first and first.what == What.DATA):
            return "different"
        # states are recorded after the last step: if only they differ, it is damage
        if self.unlike_states and not first:
            return "different"
        if self.by_design:
            return "undecided"
        if first and first.why.sure:
            return "different"
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

    @property
    def first_decides(self) -> bool:
        """Return whether ``first`` alone leads to a verdict that is not the same."""
        if self.same or self.unlike_ranks or not self.first:
            return False
        return replace(self, only_in_a=[], only_in_b=[]).verdict == self.verdict

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
    one, two = read_run(a), read_run(b)
    rows, losses = _in_both(one, two, "tensors"), _in_both(one, two, "loss")
    if not rows:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    sizes = one.world_size, two.world_size
    designed = (one.by_design or two.by_design) if sizes[0] != sizes[1] else None
    found = RunsCompared(sizes, len(rows), len(losses), designed)
    found.only_in_a, found.only_in_b = two.lacks(one), one.lacks(two)
    # the text of a loss is exact: equal text means equal bits
    found.losses = {step: (x, y) for step, x, y in losses if x != y}
    unlike = any(x[k].keys() != y[k].keys() for _, x, y in rows for k in ROW)
    for _, x, y in _in_both(one, two, "state"):
        state = found.states[x.name] = compare_states(read_state(x), read_state(y))
        unlike = unlike or bool(state.only_in_a or state.only_in_b or state.unlike)
    found.other_tensors = unlike
    found.first = _first(one, two, designed)
    if not found.equal or sizes[0] != sizes[1]:
        _compare_by_tolerance(one, two, found)
    return found


def _in_both(a: TrainingRun, b: TrainingRun, kind: str) -> list[tuple[int, Any, Any]]:
    # the entries of a kind that both runs have, with their steps
    keys = [key for key in a.entries if key[0] == kind and key in b.entries]
    return [(key[1], a.entries[key], b.entries[key]) for key in keys]


def _first(a: TrainingRun, b: TrainingRun, designed: Why | None) -> Difference | None:
    def explain(step: int, what: What, ranks: list[int]) -> Why:
        # the cause is found in the tensors that rank 0 stored at step 0
        if designed or step != 0 or not (a.sampled and b.sampled):
            return designed or UNKNOWN
        x, y = a.first_step, b.first_step
        # the fault may be in A or in B
        return _most_precise(
            cause_of(what, ranks, Values([x] * a.world_size, y, []), ("A", "B")),
            cause_of(what, ranks, Values([y] * b.world_size, x, []), ("B", "A")),
        )

    batches = _in_both(a, b, "batch")
    first, data = (
        locate([x for _, x, _ in rows], [y for _, _, y in rows], explain, "A")
        for rows in (batches + _in_both(a, b, "tensors"), batches)
    )
    # rounding at an earlier step must not hide other data
    return first if first and first.why.sure else data or first


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
        ours, theirs = a.first_step, b.first_step
        cause = _most_precise(
            cause_in_step(ours, theirs, a.world_size, "A", ROUNDING),
            cause_in_step(theirs, ours, b.world_size, "B", ROUNDING),
        )
        if cause != UNKNOWN:
            found.first = Difference(0, What.PARAMETERS, cause)


def _unlike_ranks(run: TrainingRun, states: list[Tensors]) -> str:
    # all ranks must have the same gradients and parameters, under every strategy
    rows = {key[1:]: row for key, row in run.entries.items() if key[0] == "tensors"}
    steps = sorted({step for step, _ in rows})
    for rank in range(run.world_size):
        if lacking := [step for step in steps if (step, rank) not in rows]:
            return f"rank {rank} has no step {lacking[0]}"
        if states and ("state", -1, rank) not in run.entries:
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
