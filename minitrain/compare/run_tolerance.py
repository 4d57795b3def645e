"""Distances of two training runs, held to the tolerances of the equivalence stage.

Runs of other world sizes or strategies sum in another order, so their bits differ.
They are held to the quick limits of the rungs against one process
(minitrain/proof/tolerances.py): gradients of step 0, the state after the third step,
the final state. There is no perturbed run here to measure how far rounding goes beyond.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minitrain.compare.limits import CLOSE, FLOAT32
from minitrain.proof.bits import Rung
from minitrain.proof.tolerances import (
    UNITS,
    Limits,
    close_rung,
    gradient_limits,
    state_limits,
)
from minitrain.recording.sketches import combination

Tensors = Mapping[str, Tensor]
GRADIENTS, FIRST_STEP = "gradients of step 0", "parameters after step 0"
EARLY, FINAL = "state after step 2", "final state"
# of AdamW's state at a rate of 3e-4: the default of equivalence.atol
ATOL = 1e-5


@dataclass(frozen=True)
class _Training:
    optimizer: str
    learning_rate: float


def rungs_between(
    a: Tensors, b: Tensors, final: tuple[Tensors, Tensors], *, same_gradients: bool
) -> dict[str, Rung]:
    """Compare what two runs sampled (by STEP/KIND/NAME) and their ``final`` states, in
    the order of the run, up to the first breach; empty where a run has no step 0.

    From the ``same_gradients`` of step 0 the first step may be off by some units in the
    last place, no more.
    """
    begin, ours, theirs = _of("0/before/", b), _of("0/after/", a), _of("0/after/", b)
    gradients = _of("0/gradients/", a), _of("0/gradients/", b)
    if not (all(gradients) and theirs and begin.keys() >= theirs.keys()):
        return {}
    found = {GRADIENTS: _rung(*gradients, gradient_limits(gradients[1]))}
    if same_gradients:
        # of the parameter, and as many of the terms of its step
        units = {name: 2 * UNITS * _unit(tensor) for name, tensor in theirs.items()}
        found[FIRST_STEP] = _rung(ours, theirs, Limits(units))
    # the files of a run name neither optimizer nor rate
    training: Any = _training(gradients[1], begin, theirs)
    early = _of("early/state/", a), _of("early/state/", b)
    for name, states in ((EARLY, early), (FINAL, final)):
        fine = all(rung.verdict != "breach" for rung in found.values())
        if fine and any(states) and begin.keys() >= states[1].keys():
            limits = state_limits(states[1], begin, training, ATOL)
            found[name] = _rung(*states, limits)
    return found


def is_coarse(a: Tensors, b: Tensors) -> bool:
    """Return whether the gradients of step 0 are no farther apart than rounding to 16
    bits takes them.
    """
    x, y = (_flat(_of("0/gradients/", one)) for one in (a, b))
    return len(x) == len(y) and bool((x - y).norm() <= FLOAT32.coarse * y.norm())


def _rung(ours: Tensors, theirs: Tensors, limits: Limits) -> Rung:
    # without a perturbed run nothing beyond the limits is explained
    rung = close_rung(ours, theirs, limits, lambda: theirs)
    if rung.verdict != "breach" or rung.max_abs_diff is None:
        return rung
    detail = f"{rung.max_abs_diff:.3g} apart, allowed: {max(limits.every.values()):.3g}"
    if limits.common:
        usual = max(limits.common.values())
        detail += f", for 99.9 % of the elements {usual:.3g}"
    return replace(rung, detail=detail)


def _training(gradients: Tensors, before: Tensors, after: Tensors) -> _Training:
    # a step of SGD is a multiple of the gradient, and of the weights that decay; one
    # of Adam is as long as the rate wherever there is a gradient
    names = [name for name in gradients if name in after]
    gradient, start, end = (
        _flat({name: of[name] for name in names}) for of in (gradients, before, after)
    )
    moved = end - start
    if not moved.isfinite().all():
        return _Training("adamw", 0.0)
    _, rest = combination(moved, [gradient, start])
    return _Training("sgd" if rest < CLOSE else "adamw", float(moved.abs().max()))


def _of(prefix: str, sampled: Tensors) -> dict[str, Tensor]:
    found = {n: t for n, t in sampled.items() if n.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in sorted(found.items())}


def _flat(tensors: Tensors) -> Tensor:
    flat = [tensor.double().flatten() for tensor in tensors.values()]
    return torch.cat(flat) if flat else torch.empty(0)


def _unit(tensor: Tensor) -> float:
    largest = tensor.abs().max() if tensor.numel() else 0.0
    return float(torch.finfo(tensor.dtype).eps * largest)
