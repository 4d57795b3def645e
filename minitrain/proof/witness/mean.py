"""Comparison of a batch with the mean of its slices, weighted by their targets.

:func:`buffers_rung` checks buffers in which a forward pass remembers samples, such as a
queue or a moving average. Such buffers differ between ranks; if the loss depends on
them, several ranks train differently from one process.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.witness.passes import Computer, Pass, State, failure
from minitrain.proof.witness.record import RungDict, Tensors, cuts, rung

# anything but a mean of its samples is farther away; a model that computes partly in
# float32 comes as close as 2e-7
MEAN_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
# a literal on purpose: the witness shares no code with what it checks
FINE = "within tolerance"
# number of slices whose weights a message shows, or of buffers that it names
SHOWN = 4
UNSEEN = (
    "training draws random numbers other than dropout, so its effect on the loss of a "
    "sample was not observed"
)


# result for one batch: the rung of the comparison with its slices (None if fewer than
# two have targets), and whether a pass drew random numbers
Asked = tuple[RungDict | None, bool]


def mean_rungs(
    computer: Computer, others: Iterable[int], known: dict[int, Asked]
) -> dict[str, RungDict]:
    """Compare the batches of all sampled steps and, from the final state, of the other
    steps ``others``, with the mean of their slices. Return rungs (results) by name.

    This is done in training mode (``known``: results that exist already, by step), and
    in eval mode if training fails or draws random numbers that cannot be disabled.
    """
    if computer.task.whole:
        why = "the forward pass communicates, so batches are not cut"
        return {"witness_mean": rung("not run", why)}
    record = computer.record
    states = [(step, record.of(step, "before")) for step in record.steps()]
    states += [(step, dict(record.state)) for step in others]
    try:
        asked = (
            known.get(n) or ask(computer, n, state, False)[1] for n, state in states
        )
        found, drew = _farthest(asked)
        if not drew:
            return {"witness_mean": found}
        why = UNSEEN
    except Exception as error:
        why = f"in training {failure(error)}"
    try:
        asked = (ask(computer, n, state, evaluate=True)[1] for n, state in states)
        still, _ = _farthest(asked)
    except Exception as error:
        still = rung("not run", f"in eval mode {failure(error)}")
    return {"witness_mean": rung("not run", why), "witness_mean_in_eval": still}


def _farthest(asked: Iterable[Asked]) -> tuple[RungDict, bool]:
    # the first batch that is not the mean of its slices, or the one farthest from it
    worst, drew = -1.0, False
    for found, one_drew in asked:
        drew |= one_drew
        if found is not None:
            if found["verdict"] != FINE:
                return found, drew
            worst = max(worst, found["max_abs_diff"])
    if worst < 0:
        return rung("not run", "no batch has two slices with targets"), drew
    return rung(FINE, "each batch is the mean of its slices", worst), drew


def ask(
    computer: Computer, step: int, state: State, evaluate: bool
) -> tuple[Pass, Asked]:
    """Compare loss and gradient of a step's batch, from ``state``, with the mean of the
    ranks' slices (of its halves if there is one slice). Return the whole batch's pass,
    and the result. ``evaluate`` selects eval mode; else training mode without dropout
    and with batch norm as in eval mode, since a slice's statistics differ by design.
    """
    task, batch = computer.task, computer.batch_of(step)
    own = [part for group in computer.groups_of(step) for part in group]
    if len(own) < 2 and not task.whole:
        own = cuts(batch, 2)
    # slices with targets, each from the same buffers
    parts = [[part] for part in own if task.count(part)]

    def exact(*groups: list[Any]) -> Pass:
        return computer.exact(state, [*groups], evaluate, steady=not evaluate)

    whole = exact([batch])
    if len(parts) < 2:
        return whole, (None, whole.drew)
    shares = exact(*parts)
    drew, apart = whole.drew or shares.drew, shares.far_from(whole)
    if not (whole.is_finite() and shares.is_finite()):
        found = rung("breach", "the loss or its gradient is not finite")
    elif apart <= MEAN_TOLERANCE[computer.type]:
        found = rung(FINE, "a batch is the mean of its slices", apart)
    else:
        counts = [float(task.count(part)) for (part,) in parts]
        each = [exact(part) for part in parts]
        wrong = _wrong_weights(whole, each, counts, MEAN_TOLERANCE[computer.type])
        if wrong:
            why = f"slices of the batch of step {step} have the weights {wrong}"
            why = f"the loss is not a mean over the targets: {why}"
            found = rung("breach", f"{why}; is it a mean over what is counted?", apart)
        else:
            mode = "in eval mode" if evaluate else "in training"
            why = f"{mode} a sample's loss depends on other samples of its batch"
            if computer.failed:
                why = f"{computer.failed}; in its own precision {why}, or rounds"
            found = rung("not run", f"step {step}: {why}", apart)
    return whole, (found, drew)


def _wrong_weights(
    whole: Pass, each: list[Pass], counts: list[float], close: float
) -> str:
    # the weights of the slices, if they differ from their shares of the targets
    targets = torch.tensor(counts, dtype=torch.float64)
    by_count = targets / targets.sum()
    matrix = torch.stack([one.flat(whole) for one in each], 1)
    wanted = whole.flat(whole)
    fit = torch.linalg.lstsq(matrix, wanted[:, None]).solution[:, 0]
    rest = float((matrix @ fit - wanted).norm() / (wanted.norm() + 1e-300))
    if rest > close or float((fit - by_count).abs().max()) <= close:
        return ""
    has, right = (
        ", ".join(f"{x:.4g}" for x in weights[:SHOWN].tolist())
        for weights in (fit, by_count)
    )
    is_sum = float((fit - 1).abs().max()) <= close
    return f"{has}, by their targets {right}{': it is a sum' if is_sum else ''}"


def buffers_rung(computer: Computer) -> RungDict | None:
    """Return a rung: within tolerance if a forward pass leaves equal buffers on two
    ranks, or none that affect the loss, else not run; None without buffers or rank 1.
    """
    names, record = _own_buffers(computer.own), computer.record
    step = record.steps()[-1]
    state = record.of(step, "before")
    parts = [group[0] for group in computer.groups_of(step) if group]
    if not names or len(parts) < 2:
        return None
    try:
        ends = [_after(computer, state, part, names) for part in parts[:2]]
        apart = [name for name in names if not torch.equal(*(e[name] for e in ends))]
        if not apart:
            return rung(FINE, "each rank's forward pass leaves the same buffers")
        one, other = (
            computer.exact({**state, **end}, [[parts[0]]], False, steady=True)
            for end in ends
        )
    except Exception as error:
        return rung("not run", failure(error))
    named, gap = ", ".join(apart[:SHOWN]), other.far_from(one)
    if gap <= MEAN_TOLERANCE[computer.type]:
        return rung(FINE, f"the loss does not depend on {named}", gap)
    why = f"the loss depends on {named}, which each rank's samples change"
    return rung("not run", why, gap)


def _own_buffers(model: nn.Module) -> list[str]:
    kept = model.state_dict().keys()
    statistics = {
        id(getattr(module, name))
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    named = model.named_buffers()
    return [n for n, buffer in named if n in kept and id(buffer) not in statistics]


def _after(
    computer: Computer, state: Tensors, part: object, names: list[str]
) -> Tensors:
    computer.exact(state, [[part]], evaluate=False, steady=True)
    left: dict[str, Tensor] = dict(computer.fine.named_buffers())
    return {name: left[name].detach().clone() for name in names}
