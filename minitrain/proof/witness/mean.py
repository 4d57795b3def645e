"""A batch's loss and gradient against the mean of its parts', by their targets.

And against buffers in which a forward pass remembers its samples: a queue of samples,
or a moving average of them, is another on each rank, and several ranks train otherwise
than one process where the loss depends on it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.witness.passes import Computer, Pass, State, failure
from minitrain.proof.witness.record import Rung, Tensors, cuts, rung

# what is no mean, or no function of its samples, is farther from one; a model that
# computes partly in float32 comes as near as 2e-7
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}
FINE = "within tolerance"
# parts whose weights a message names, and buffers
SHOWN, SHOWN_BUFFERS = 4, 3
UNSEEN = (
    "training draws random numbers that are no dropout: what it does to the loss of a "
    "sample was not seen"
)


class Asked(NamedTuple):
    """Result for a batch: what was ``found`` of its parts, None if no two have targets,
    and whether a pass ``drew`` random numbers.
    """

    found: Rung | None
    drew: bool


def mean_rungs(
    computer: Computer, others: Iterable[int], known: dict[int, Asked]
) -> dict[str, Rung]:
    """Compare the batches of all sampled steps, and of ``others`` from the final state,
    with their parts: in training (``known`` of some steps), or in eval mode where
    training draws what cannot be left out. What one seed did not draw another may.
    """
    if computer.task.whole:
        why = "the forward pass communicates: no batch is cut"
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


def _farthest(asked: Iterable[Asked]) -> tuple[Rung, bool]:
    # the first batch that is not the mean of its parts, or the farthest one
    worst, drew = -1.0, False
    for one in asked:
        drew |= one.drew
        if one.found is not None:
            if one.found["verdict"] != FINE:
                return one.found, drew
            worst = max(worst, one.found["max_abs_diff"])
    if worst < 0:
        return rung("not run", "no batch has two parts with targets"), drew
    return rung(FINE, "each batch is the mean of its parts", worst), drew


def ask(
    computer: Computer, step: int, state: State, evaluate: bool
) -> tuple[Pass, Asked]:
    """Compare one batch with the parts that the ranks computed, or with its halves: in
    training without dropout, and with batch norm as in eval mode, since its statistics
    of a part differ from those of the whole by design; or in eval mode. The first is
    the pass over the whole batch.
    """
    task, batch = computer.task, computer.batch_of(step)
    own = [part for group in computer.groups_of(step) for part in group]
    if len(own) < 2 and not task.whole:
        own = cuts(batch, 2)
    # those that have targets, each from the same buffers
    parts = [[part] for part in own if task.count(part)]

    def exact(*groups: list[Any]) -> Pass:
        return computer.exact(state, [*groups], evaluate, steady=not evaluate)

    whole = exact([batch])
    if len(parts) < 2:
        return whole, Asked(None, whole.drew)
    shares = exact(*parts)
    drew, apart = whole.drew or shares.drew, shares.far_from(whole)
    if not (whole.is_finite() and shares.is_finite()):
        found = rung("breach", "the loss or its gradient is not finite")
    elif apart <= CLOSE[computer.type]:
        found = rung(FINE, "a batch is the mean of its parts", apart)
    else:
        counts = [float(task.count(part)) for (part,) in parts]
        each = [exact(part) for part in parts]
        wrong = _wrong_weights(whole, each, counts, CLOSE[computer.type])
        if wrong:
            why = f"parts of the batch of step {step} have the weights {wrong}"
            why = f"the loss is no mean over the targets: {why}"
            found = rung("breach", f"{why}; is it a mean over what is counted?", apart)
        else:
            mode = "in eval mode" if evaluate else "in training"
            why = f"{mode} a sample's loss depends on other samples of its batch"
            if computer.failed:
                why = f"{computer.failed}; in its own precision {why}, or rounds"
            found = rung("not run", f"step {step}: {why}", apart)
    return whole, Asked(found, drew)


def _wrong_weights(
    whole: Pass, each: list[Pass], counts: list[float], close: float
) -> str:
    # the weights that the parts have instead of those by their targets, if any
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


def buffers_rung(computer: Computer) -> Rung | None:
    """Compare the buffers that two ranks leave after a pass from one state, and the
    loss and gradient of one part from each; None where no buffer may change.
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
    more = ", ..." if apart[SHOWN_BUFFERS:] else ""
    named = f"{', '.join(apart[:SHOWN_BUFFERS])}{more}"
    gap = other.far_from(one)
    if gap <= CLOSE[computer.type]:
        return rung(FINE, f"the loss does not depend on {named}", gap)
    why = f"the loss depends on {named}, which each rank's samples change"
    return rung("not run", why, gap)


def _own_buffers(model: nn.Module) -> list[str]:
    kept = model.state_dict().keys()
    # not the statistics of batch norm
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
