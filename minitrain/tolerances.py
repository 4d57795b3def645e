"""The rungs that compare with one process which computes the whole batch at once.

Its sums have other shapes, so bits cannot be expected. What rounding may do is first
held to a quick limit, which costs nothing; what is beyond that is held to a twin: the
same process from a start one unit in the last place away, which shows how far rounding
alone carries each tensor (docs/reference.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

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

# the quick limits: of the largest gradient; of how far SGD moved a tensor; for AdamW of
# the rate (``atol`` is for a rate of 3e-4); and where all is float64
GRADIENT_SHARE = 1e-5
GRADIENT_SHARE_FLOAT64 = 1e-13
SGD_SHARE = 1e-4
ADAMW_RATE_OF_ATOL = 3e-4
ADAMW_SHARE_WITHIN_ATOL = 0.999
STATE_FLOAT64 = 1e-11
# units in the last place that a value itself may be off
UNITS = 4
# beyond the quick limit: so many times as far as the twin
TIMES_TWIN = 10
LOSS_SHARE = 0.05


class Tuning(Protocol):
    """What a tolerance depends on: ``train`` of params.yaml has it."""

    @property
    def optimizer(self) -> str: ...

    @property
    def learning_rate(self) -> float: ...


@dataclass(frozen=True)
class Compared:
    """What is compared of a run: its hash rows, synchronised gradients of step 0, state
    after the third step, final state, the loss of every step, and where it started.
    """

    rows: Rows
    gradients: Tensors
    early: Tensors
    state: Tensors
    losses: Sequence[float]
    start: Tensors


# a one-process run from a start one ULP away, of so many steps (None: of all)
Twin = Callable[[int | None], Compared]
EARLY = 3


def one_process_rungs(
    run: Compared, one: Compared, train: Tuning, atol: float, twin: Twin
) -> dict[str, Rung]:
    """All rungs of ``run`` against ``one`` process, by name.

    A forward pass that depends on more than its samples is not compared but for its
    data and its loss. ``twin`` is asked only for what is beyond the quick limits.
    """
    why = own_to_each_rank(run.rows)

    def gradients() -> Rung:
        pair = run.gradients, one.gradients
        return by_twin(gradients_rung(*pair), *pair, lambda: twin(EARLY).gradients)

    def early() -> Rung:
        if not run.early:
            return not_run("fewer than three steps")
        pair = run.early, one.early
        quick = state_rung(*pair, one.start, train, atol)
        return by_twin(quick, *pair, lambda: twin(EARLY).early)

    def final() -> Rung:
        pair = run.state, one.state
        quick = state_rung(*pair, one.start, train, atol)
        rung = by_twin(quick, *pair, lambda: twin(None).state)
        # training that is unstable at its rate amplifies rounding without bound, and a
        # fault could hide in it
        explained = quick.verdict == "breach" and rung.verdict == "within tolerance"
        return replace(rung, verdict="undecided") if explained else rung

    rungs = {
        "one_process_gradients": gradients,
        "one_process_early": early,
        "one_process": final,
    }
    return {
        "one_process_data": data_rung(run.rows, one.rows),
        **{name: not_run(why) if why else rung() for name, rung in rungs.items()},
        "loss": loss_rung(run.losses, one.losses),
    }


def gradients_rung(run: Tensors, one: Tensors) -> Rung:
    """Step-0 gradients, quickly: equal weights, other summation shapes.

    Within 1e-5 of the model's largest gradient, in float64 1e-13 of it.
    """
    largest = max((_size(gradient) for gradient in one.values()), default=0.0)
    share = GRADIENT_SHARE_FLOAT64 if _all_float64(one) else GRADIENT_SHARE
    return _quick_rung(run, one, dict.fromkeys(one, share * largest))


def state_rung(
    run: Tensors, one: Tensors, start: Tensors, train: Tuning, atol: float
) -> Rung:
    """A state, quickly. SGD: within 1e-4 of how far training moved the tensor. AdamW:
    99.9 % of the elements within ``atol`` times rate / 3e-4 and every element within
    the rate. Where all is float64: within 1e-11. Beside it some units in the last place
    of the values themselves.
    """
    if _all_float64(one):
        return _quick_rung(run, one, dict.fromkeys(one, STATE_FLOAT64))
    units = {n: UNITS * _unit(t) * _size(t) for n, t in one.items()}
    if train.optimizer == "sgd":
        moved = {n: _size(t.double() - start[n].double()) for n, t in one.items()}
        return _quick_rung(run, one, {n: units[n] + SGD_SHARE * moved[n] for n in one})
    rate = train.learning_rate
    common = atol * rate / ADAMW_RATE_OF_ATOL
    limits = {n: max(rate, common) + units[n] for n in one}
    return _quick_rung(run, one, limits, {n: common + units[n] for n in one})


def _quick_rung(
    run: Tensors,
    other: Tensors,
    limits: Mapping[str, float],
    common: Mapping[str, float] | None = None,
) -> Rung:
    """Every element within its tensor's limit, and 99.9 % of all within ``common``."""
    apart = distance(run, other)
    if apart.max_abs_diff is None or first_nan(run):
        tensor = first_nan(run) or apart.tensor
        detail = f"tensor {tensor} cannot be compared (NaN, shape or dtype)"
        return Rung(False, None, None, "breach", detail)
    found = {name: gaps(run[name], other[name]) for name in run if run[name].numel()}
    shares = {
        name: float(gap.max()) / (limits[name] or 1) for name, gap in found.items()
    }
    worst = max(shares, key=lambda name: shares[name], default="")
    detail = f"allowed: {limits.get(worst, 0.0):.3g}"
    within = all(float(gap.max()) <= limits[name] for name, gap in found.items())
    if common is not None and found:
        near = torch.cat([gap <= common[name] for name, gap in found.items()])
        share = float(near.double().mean())
        within = within and share >= ADAMW_SHARE_WITHIN_ATOL
        usual = min(common.values())
        detail += f", for 99.9 % of the elements {usual:.3g} (here {100 * share:.5g} %)"
    if not within:
        detail += f"; tensor {worst} is {float(found[worst].max()):.3g} off"
    verdict: Verdict = "within tolerance" if within else "breach"
    if apart.bytes_equal:
        verdict = "equal"
    return Rung(apart.bytes_equal, apart.max_ulp, apart.max_abs_diff, verdict, detail)


def by_twin(
    quick: Rung, run: Tensors, one: Tensors, twin: Callable[[], Tensors]
) -> Rung:
    """What is beyond the quick limit: in no tensor ten times as far as the twin."""
    if quick.verdict != "breach" or quick.max_abs_diff is None:
        return quick
    carried = twin()
    far = {name: _size(carried[name].double() - one[name].double()) for name in one}
    gap = {name: _size(run[name].double() - one[name].double()) for name in one}
    beyond = [name for name in one if not gap[name] <= TIMES_TWIN * far[name]]
    if beyond:
        worst = max(beyond, key=lambda name: gap[name] / (far[name] + 1e-300))
        detail = (
            f"tensor {worst} is {gap[worst]:.3g} off, a start one ULP away carries it "
            f"{far[worst]:.3g}"
        )
        return replace(quick, detail=detail)
    worst = max(gap, key=lambda name: gap[name])
    detail = (
        f"rounding explains it: tensor {worst} is {gap[worst]:.3g} off, and a start one "
        f"ULP away carries it {far[worst]:.3g}"
    )
    return replace(quick, verdict="within tolerance", detail=detail)


def loss_rung(losses: Sequence[float], one_process: Sequence[float]) -> Rung:
    """Mean loss of the last quarter of the steps: above one process's by at most 5 % of
    that.

    For strategies that approximate gradients: they may learn otherwise, not worse.
    """
    last = max(1, len(losses) // 4)
    ours, theirs = (sum(x[-last:]) / last for x in (losses, one_process))
    detail = f"{ours:.4g} against {theirs:.4g}, allowed {LOSS_SHARE:.0%} above"
    within = ours <= theirs + LOSS_SHARE * abs(theirs)
    verdict: Verdict = "within tolerance" if within else "breach"
    return Rung(None, None, abs(ours - theirs), verdict, detail)


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _unit(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def _all_float64(tensors: Tensors) -> bool:
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    return bool(floating) and set(floating) == {torch.float64}
