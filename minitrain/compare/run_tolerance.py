"""Comparison of two training runs within the tolerances of the equivalence stage.

Runs of different world sizes or strategies sum in another order, so bits differ. The
gradients of step 0, the state after the third step and the final state must be within
the quick limits of the checks against one process (minitrain/proof/tolerances.py); no
perturbed run shows how far rounding goes beyond. Since these limits are wide for AdamW,
the first two steps are also checked against their own gradients.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from minitrain.analysis.rungs import CheckVerdict, Rung
from minitrain.compare.diagnosis import flat
from minitrain.compare.limits import CLOSE
from minitrain.proof import tolerances
from minitrain.proof.tolerances import GRADIENT_SHARE, UNITS, TensorLimits
from minitrain.proof.ulp import same_kind
from minitrain.recording.sketches import combination

Tensors = Mapping[str, Tensor]
GRADIENTS, FIRST_STEPS = "gradients of step 0", "first two steps"
EARLY, FINAL = "state after step 2", "final state"
# tolerance of AdamW's state at a learning rate of 3e-4, as of equivalence.atol
ATOL = 1e-5


def rungs_between(
    a: Tensors, b: Tensors, final: tuple[Tensors, Tensors], first: int
) -> dict[str, Rung]:
    """Compare sampled tensors (by STEP/KIND/NAME) and ``final`` states of two runs, in
    the order of the run, up to the first breach (a failed check). ``first`` is the step
    from which gradients differ.

    Returns:
        Rungs (results of checks) by name; empty if a run has no step 0.
    """
    begin, theirs = sampled_at("0/before/", b), sampled_at("0/after/", b)
    found: dict[str, Rung] = {}
    for step in sorted({0, first}):
        ours, wanted = (sampled_at(f"{step}/gradients/", one) for one in (a, b))
        if ours and wanted:
            rung = _rung(ours, wanted, tolerances.gradient_limits(wanted))
            found[f"gradients of step {step}"] = rung
    if GRADIENTS not in found or not theirs or not begin.keys() >= theirs.keys():
        return {}
    if found[GRADIENTS].verdict is not CheckVerdict.BREACH:
        found[FIRST_STEPS] = _first_steps(a, b)
    # the files of a run name neither optimizer nor rate
    training = _training(sampled_at("0/gradients/", b), begin, theirs)
    early = sampled_at("early/state/", a), sampled_at("early/state/", b)
    for name, states in ((EARLY, early), (FINAL, final)):
        fine = all(r.verdict is not CheckVerdict.BREACH for r in found.values())
        if fine and any(states) and begin.keys() >= states[1].keys():
            limits = tolerances.state_limits(states[1], begin, training, ATOL)
            found[name] = _rung(*states, limits)
    return found


def _rung(ours: Tensors, theirs: Tensors, limits: TensorLimits) -> Rung:
    # without a perturbed run nothing beyond the limits is explained
    rung = tolerances.close_rung(ours, theirs, limits, lambda: theirs)
    if rung.verdict is not CheckVerdict.BREACH or rung.max_abs_diff is None:
        return rung
    detail = f"{rung.max_abs_diff:.3g} apart, allowed: {max(limits.every.values()):.3g}"
    if limits.common:
        usual = max(limits.common.values())
        detail += f", for 99.9 % of the elements {usual:.3g}"
    return replace(rung, detail=detail)


def _first_steps(a: Tensors, b: Tensors) -> Rung:
    # steps of SGD and Adam are functions of the gradients so far, element by element,
    # so the relative error of a step is at most the one of the gradients
    before, apart, worst = sampled_at("0/before/", b), 0.0, (0.0, "")
    sums: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for step in (0, 1):
        gradients, after = (
            [sampled_at(f"{step}/{kind}/", one) for one in (a, b)]
            for kind in ("gradients", "after")
        )
        for name, tensor in after[1].items() if all(gradients) else ():
            if not (name in after[0] and same_kind(after[0][name], tensor)):
                return Rung(False, None, None, CheckVerdict.BREACH, f"tensor {name}")
            x, y, start = (t.double() for t in (after[0][name], tensor, before[name]))
            none = torch.zeros_like(y)
            g, h = (one.get(name, none).double() for one in gradients)
            off, size, share = sums.get(name, (none, none, none))
            off, size = off + (g - h).abs(), size.maximum(g.abs()).maximum(h.abs())
            share = share + UNITS * (off / size).nan_to_num(0.0) + GRADIENT_SHARE
            sums[name] = off, size, share
            moved, gap = (x - start).abs().maximum((y - start).abs()), (x - y).abs()
            eps = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
            allowed = 2 * UNITS * eps * y.abs() + _size(moved) * share
            beyond = _size((gap / allowed.clamp_min(1e-300)).nan_to_num(torch.inf))
            apart = max(apart, _size(gap))
            worst = max(worst, (beyond, f", step {step}, tensor {name}"))
    detail = f"at most {worst[0]:.2g} of what the gradients explain{worst[1]}"
    verdict = CheckVerdict.BREACH if worst[0] > 1 else CheckVerdict.WITHIN
    return Rung(apart == 0, None, apart, verdict, detail)


def _training(gradients: Tensors, before: Tensors, after: Tensors) -> Any:
    # a step of SGD is a combination of the gradient and the weights (decay); one of
    # Adam is as long as the rate in each element with a gradient
    names = [name for name in gradients if name in after]
    gradient, start, end = (
        flat({name: of[name] for name in names}).double()
        for of in (gradients, before, after)
    )
    moved = end - start
    if not moved.isfinite().all():
        return SimpleNamespace(optimizer="adamw", learning_rate=0.0)
    _, rest = combination(moved, [gradient, start])
    rate = float(moved.abs().max())
    name = "sgd" if rest < CLOSE else "adamw"
    return SimpleNamespace(optimizer=name, learning_rate=rate)


def sampled_at(prefix: str, sampled: Tensors) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, which is removed."""
    found = {n: t for n, t in sampled.items() if n.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in sorted(found.items())}


def _size(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0
