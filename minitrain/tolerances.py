"""The rungs that compare with one process which computes the whole batch at once.

Its sums have other shapes, so bits cannot be expected: each tolerance states where it
comes from (docs/reference.md), and rounding is told from error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from minitrain.equivalence import (
    Rows,
    Rung,
    Tensors,
    Verdict,
    data_rung,
    first_nan,
    not_run,
    own_to_each_rank,
)
from minitrain.ulp import distance, gaps

GRADIENT_TOLERANCE = 1e-5
# where all is float64, rounding is 2^29 times finer, and so are the limits
GRADIENT_TOLERANCE_FLOAT64 = 1e-13
STATE_TOLERANCE_FLOAT64 = 1e-11
SGD_TOLERANCE = 1e-6
LOSS_TOLERANCE = 0.05
ADAMW_RATE_OF_ATOL = 3e-4
ADAMW_SHARE_WITHIN_ATOL = 0.999
MUCH_FARTHER = 10


class Tuning(Protocol):
    """What a tolerance depends on: ``train`` of params.yaml has it."""

    @property
    def optimizer(self) -> str: ...

    @property
    def learning_rate(self) -> float: ...


@dataclass(frozen=True)
class Compared:
    """What is compared of a run: its hash rows, synchronised gradients of step 0, state
    after the third step, final state, and the loss of every step.
    """

    rows: Rows
    gradients: Tensors
    early: Tensors
    state: Tensors
    losses: Sequence[float]


def one_process_rungs(
    run: Compared,
    one: Compared,
    train: Tuning,
    atol: float,
    nudged: Callable[[], Tensors],
) -> dict[str, Rung]:
    """All rungs of ``run`` against ``one`` process, by name.

    A forward pass that depends on more than its samples is not compared but for its
    data and its loss.
    """
    limits = (train, atol)
    why = own_to_each_rank(run.rows)
    rungs: dict[str, Callable[[], Rung]] = {
        "one_process_gradients": lambda: gradients_rung(run.gradients, one.gradients),
        "one_process_early": lambda: early_state_rung(run.early, one.early, *limits),
        "one_process": lambda: final_state_rung(run.state, one.state, *limits, nudged),
    }
    return {
        "one_process_data": data_rung(run.rows, one.rows),
        **{name: not_run(why) if why else rung() for name, rung in rungs.items()},
        "loss": loss_rung(run.losses, one.losses),
    }


def gradients_rung(run: Tensors, one_process: Tensors) -> Rung:
    """Step-0 gradients against one process with the whole batch.

    Equal weights, other summation shapes: within 1e-5 of the model's largest gradient,
    in float64 1e-13 of it.
    """
    sizes = [float(g.abs().max()) for g in one_process.values() if g.numel()]
    largest = max(sizes, default=0.0)
    double = _all_float64(one_process)
    share = GRADIENT_TOLERANCE_FLOAT64 if double else GRADIENT_TOLERANCE
    return _tolerance_rung(run, one_process, share * largest)


def early_state_rung(
    run: Tensors, one_process: Tensors, train: Tuning, atol: float
) -> Rung:
    """State after the third step against one process with the whole batch.

    The limits of :func:`state_rung`; so early, rounding has had no time to grow.
    """
    if not run:
        return not_run("fewer than three steps")
    return state_rung(run, one_process, train, atol)


def final_state_rung(
    run: Tensors,
    one_process: Tensors,
    train: Tuning,
    atol: float,
    nudged: Callable[[], Tensors],
) -> Rung:
    """Final state against one process with the whole batch.

    Training that is unstable at its learning rate amplifies rounding without bound. So
    a state beyond tolerance is compared with how far ``nudged()`` went: one process
    that started one unit in the last place away. Where that is beyond tolerance too,
    and not much nearer, rounding alone explains the gap: it is undecided.
    """
    rung = state_rung(run, one_process, train, atol)
    if rung.verdict != "breach" or rung.max_abs_diff is None:
        return rung
    drift = state_rung(nudged(), one_process, train, atol)
    if drift.verdict != "breach" or drift.max_abs_diff is None:
        return rung
    if rung.max_abs_diff > MUCH_FARTHER * drift.max_abs_diff:
        return rung
    unstable = f"a start one ULP away ends {drift.max_abs_diff:.3g} away"
    detail = f"{rung.detail}, but {unstable}: this training is unstable"
    return replace(rung, verdict="undecided", detail=detail)


def state_rung(run: Tensors, one_process: Tensors, train: Tuning, atol: float) -> Rung:
    """A state against one process with the whole batch.

    SGD: every element within 1e-6. AdamW: 99.9 % of the elements within ``atol`` times
    learning rate / 3e-4 and every element within the learning rate, because AdamW
    turns rounding noise in a vanishing gradient into steps of the rate's size. Where
    all is float64: every element within 1e-11.
    """
    if _all_float64(one_process):
        return _tolerance_rung(run, one_process, STATE_TOLERANCE_FLOAT64)
    if train.optimizer == "sgd":
        return _tolerance_rung(run, one_process, SGD_TOLERANCE)
    rate = train.learning_rate
    common = atol * rate / ADAMW_RATE_OF_ATOL
    return _tolerance_rung(run, one_process, max(rate, common), common)


def _tolerance_rung(
    run: Tensors, other: Tensors, every: float, most: float | None = None
) -> Rung:
    apart = distance(run, other)
    if apart.max_abs_diff is None or first_nan(run):
        tensor = first_nan(run) or apart.tensor
        detail = f"tensor {tensor} cannot be compared (NaN, shape or dtype)"
        return Rung(False, None, None, "breach", detail)
    apart_by = {n: gaps(run[n], other[n]) for n in run if run[n].numel()}
    every_gap = torch.cat(list(apart_by.values()))
    share = float((every_gap <= most).double().mean()) if most is not None else 1.0
    within = apart.max_abs_diff <= every and share >= ADAMW_SHARE_WITHIN_ATOL
    detail = f"allowed: {every:.3g}"
    if most is not None:
        detail += f", for 99.9 % of the elements {most:.3g} (here {100 * share:.5g} %)"
    if not within:
        worst = max(apart_by, key=lambda n: float(apart_by[n].max()))
        detail += f"; tensor {worst} is {apart.max_abs_diff:.3g} off"
    verdict: Verdict = "within tolerance" if within else "breach"
    if apart.bytes_equal:
        verdict = "equal"
    return Rung(apart.bytes_equal, apart.max_ulp, apart.max_abs_diff, verdict, detail)


def loss_rung(losses: Sequence[float], one_process: Sequence[float]) -> Rung:
    """Mean loss of the last quarter of the steps: at most 5 % above one process's.

    For strategies that approximate gradients: they may learn otherwise, not worse.
    """
    last = max(1, len(losses) // 4)
    ours, theirs = (sum(x[-last:]) / last for x in (losses, one_process))
    detail = f"{ours:.4g} against {theirs:.4g}, allowed {LOSS_TOLERANCE:.0%} above"
    within = ours <= theirs * (1 + LOSS_TOLERANCE)
    verdict: Verdict = "within tolerance" if within else "breach"
    return Rung(None, None, abs(ours - theirs), verdict, detail)


def _all_float64(tensors: Tensors) -> bool:
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    return bool(floating) and set(floating) == {torch.float64}
