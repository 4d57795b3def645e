"""Checks that compare a run with one process on whole batches, within tolerances.

One process groups sums differently, so bits differ. Beyond a quick limit, a perturbed
run (the twin), whose start weights are one unit in the last place away, measures how
far rounding alone moves each tensor (docs/verdicts.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minitrain.analysis.rungs import CheckVerdict, Rung, not_run
from minitrain.proof.bits import data_rung, first_nan
from minitrain.proof.evidence import Evidence, Tensors
from minitrain.proof.forward import forward_of
from minitrain.proof.ulp import distance, gaps
from minitrain.train.config import RunConfig

# quick limits: shares of the largest gradient, and of the distance that SGD moved a
# tensor; for AdamW, ``atol`` holds at a learning rate of 3e-4; all-float64 models
GRADIENT_SHARE = 1e-5
GRADIENT_SHARE_FLOAT64 = 1e-13
SGD_SHARE = 1e-4
ADAMW_RATE_OF_ATOL = 3e-4
ADAMW_SHARE_WITHIN_ATOL = 0.999
STATE_FLOAT64 = 1e-11
# allowed units in the last place of the value itself
UNITS = 4
# beyond the quick limit: allowed multiple of the distance of the perturbed run
TIMES_TWIN = 10
EXPLAINED = "rounding explains it"
MAX_LOSS_EXCESS = 0.05
COMPARABLE = ("one_process_gradients", "one_process_early", "one_process")
# trains the perturbed run
Twin = Callable[[], Evidence]


def one_process_rungs(
    run: Evidence, one: Evidence, train: RunConfig, atol: float, twin: Twin
) -> dict[str, Rung]:
    """Compare ``run`` with ``one``, the run of one process; return rungs (results) by
    name. If the forward pass draws random numbers or normalizes by its batch, only data
    and loss are compared. ``atol`` is for :func:`state_limits`. ``twin()`` trains
    the perturbed run; it is called only if a quick limit is exceeded.
    """
    forward = forward_of(run.rows, train)

    def state(
        ours: Tensors,
        theirs: Tensors,
        twins: Callable[[], Tensors],
        explained: CheckVerdict = CheckVerdict.WITHIN,
    ) -> Rung:
        # a buffer may count a rank's own samples: if it affected training, parameters
        # would diverge
        ours, kept = (
            {name: t for name, t in tensors.items() if name not in forward.changed}
            for tensors in (ours, theirs)
        )
        limits = state_limits(kept, one.start, train, atol)
        rung = close_rung(ours, kept, limits, twins, explained=explained)
        detail = "; ".join(filter(None, (rung.detail, forward.omits(theirs))))
        return replace(rung, detail=detail)

    rungs = {"one_process_data": data_rung(run.rows, one.rows)}
    if forward.why:
        rungs |= dict.fromkeys(COMPARABLE, not_run(forward.why))
    else:
        gradients = close_rung(
            *(run.gradients, one.gradients, gradient_limits(one.gradients)),
            lambda: twin().gradients,
            lambda: twin().unit,
        )
        early = not_run("fewer than three steps")
        if run.early:
            early = state(run.early, one.early, lambda: twin().early)
        # undecided: unstable training amplifies rounding without bound, which could
        # hide a fault
        given = run.state, one.state, lambda: twin().state
        final = state(*given, CheckVerdict.UNDECIDED)
        rungs |= zip(COMPARABLE, (gradients, early, final), strict=True)
    return rungs | {"loss": loss_rung(run.losses, one.losses)}


@dataclass(frozen=True)
class TensorLimits:
    """Allowed absolute differences, by tensor name: of every element, and of 99.9 % of
    all elements (``common``; None for no such limit).
    """

    every: Mapping[str, float]
    common: Mapping[str, float] | None = None


def gradient_limits(one: Tensors) -> TensorLimits:
    """Return the limits of gradients at step 0, where both runs have equal weights: the
    largest element in ``one`` (the reference's gradients) times 1e-5, in float64 1e-13.
    """
    largest = max((_size(gradient) for gradient in one.values()), default=0.0)
    share = GRADIENT_SHARE_FLOAT64 if _all_float64(one) else GRADIENT_SHARE
    return TensorLimits(dict.fromkeys(one, share * largest))


def state_limits(
    one: Tensors, start: Tensors, train: RunConfig, atol: float
) -> TensorLimits:
    """Return the limits of a model state; ``one`` is the reference's. SGD: 1e-4 of each
    tensor's distance from its ``start``. AdamW: ``atol`` * rate / 3e-4 for 99.9 % of
    all elements, and the learning rate (if larger) for each. Both add ``UNITS`` ULP of
    the tensor's largest element. All-float64 models: 1e-11.
    """
    if _all_float64(one):
        return TensorLimits(dict.fromkeys(one, STATE_FLOAT64))
    units = {name: UNITS * _unit(t) * _size(t) for name, t in one.items()}
    if train.optimizer == "sgd":
        moved = {name: _apart(t, start[name]) for name, t in one.items()}
        return TensorLimits(
            {name: units[name] + SGD_SHARE * moved[name] for name in one}
        )
    rate = train.learning_rate
    common = atol * rate / ADAMW_RATE_OF_ATOL
    every = {name: max(rate, common) + units[name] for name in one}
    return TensorLimits(every, {name: common + units[name] for name in one})


def close_rung(
    run: Tensors,
    one: Tensors,
    limits: TensorLimits,
    twin: Callable[[], Tensors],
    unit: Callable[[], float] = lambda: 0.0,
    explained: CheckVerdict = CheckVerdict.WITHIN,
) -> Rung:
    """Return a rung: EQUAL, or WITHIN if ``run`` differs from ``one`` by at most
    ``limits``. Beyond these, ``explained`` if each tensor that exceeds them differs by
    at most ten times the distance of ``twin()`` (the perturbed run) from ``one``, or
    ``UNITS`` times ``unit()`` times its largest element; otherwise, and for a NaN,
    BREACH.
    """
    apart = distance(run, one)
    if apart.max_abs_diff is None or first_nan(run):
        tensor = first_nan(run) or apart.tensor
        detail = f"tensor {tensor} cannot be compared (NaN, shape or dtype)"
        return Rung(False, None, None, CheckVerdict.BREACH, detail)
    found = {name: gaps(run[name], one[name]) for name in run if run[name].numel()}
    most = {name: float(gap.max()) for name, gap in found.items()}
    within = all(gap <= limits.every[name] for name, gap in most.items())
    detail = f"allowed: {max(limits.every.values(), default=0.0):.3g}"
    if limits.common is not None and found:
        near = [gap <= limits.common[name] for name, gap in found.items()]
        share = float(torch.cat(near).double().mean())
        within = within and share >= ADAMW_SHARE_WITHIN_ATOL
        usual = max(limits.common.values())
        detail += f", for 99.9 % of the elements {usual:.3g} (here {100 * share:.5g} %)"
    verdict = CheckVerdict.WITHIN
    if apart.bytes_equal:
        verdict = CheckVerdict.EQUAL
    elif not within:
        usual_limits = limits.common or limits.every
        beyond = {n: gap for n, gap in most.items() if not gap <= usual_limits[n]}
        within, detail = _by_twin(beyond, one, twin(), unit())
        verdict = explained if within else CheckVerdict.BREACH
    return Rung(apart.bytes_equal, apart.max_ulp, apart.max_abs_diff, verdict, detail)


def _by_twin(
    beyond: Mapping[str, float], one: Tensors, twin: Tensors, unit: float
) -> tuple[bool, str]:
    far = {name: _apart(twin[name], one[name]) for name in beyond}
    units = {name: UNITS * unit * _size(one[name]) for name in beyond}
    most = {name: max(TIMES_TWIN * far[name], units[name]) for name in beyond}
    worst = max(beyond, key=lambda name: beyond[name] / (most[name] + 1e-300))
    within = all(gap <= most[name] for name, gap in beyond.items())
    named = f"tensor {worst} is {beyond[worst]:.3g} off"
    carried = f"a start one ULP away moves it by {far[worst]:.3g}"
    return within, f"{f'{EXPLAINED}: ' if within else ''}{named}, {carried}"


def loss_rung(losses: Sequence[float], one_process: Sequence[float]) -> Rung:
    """Return a rung: WITHIN if the last quarter of ``losses`` has a mean at most 5 %
    above ``one_process``. Approximate gradients may learn differently, not worse.
    """
    last = max(1, len(losses) // 4)
    ours, theirs = (sum(x[-last:]) / last for x in (losses, one_process))
    detail = f"{ours:.4g} against {theirs:.4g}, allowed {MAX_LOSS_EXCESS:.0%} above"
    within = ours <= theirs + MAX_LOSS_EXCESS * abs(theirs)
    verdict = CheckVerdict.WITHIN if within else CheckVerdict.BREACH
    return Rung(None, None, abs(ours - theirs), verdict, detail)


def _size(tensor: Tensor) -> float:
    # infinities, as in a mask, have no size
    finite = tensor.double().nan_to_num(0.0, 0.0, 0.0).abs()
    return float(finite.max()) if tensor.numel() else 0.0


def _apart(a: Tensor, b: Tensor) -> float:
    return float(gaps(a, b).max()) if a.numel() else 0.0


def _unit(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def _all_float64(tensors: Tensors) -> bool:
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    return bool(floating) and set(floating) == {torch.float64}
