"""A batch's loss and gradient against the mean of its parts', by their targets.

And against buffers in which a forward pass remembers its samples: a queue of samples,
or a moving average of them, is another on each rank, and several ranks train otherwise
than one process where the loss depends on it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.witness.batches import cuts
from minitrain.proof.witness.passes import Computer, Pass, State, failure
from minitrain.proof.witness.record import Record, Rung, Tensors, rung

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


class Mean:
    """Compares batches with the parts that the ranks computed, or with their halves: in
    training without dropout, and with batch norm as in eval mode, since its statistics
    of a part differ from those of the whole by design.
    """

    def __init__(self, computer: Computer) -> None:
        self.computer, self.task = computer, computer.task
        # the pass over the batch that was asked for last, and whether any has drawn
        self.whole, self.drew = Pass(0.0, {}), False
        # what is known in training, by step
        self.known: dict[int, Rung | None] = {}

    def rungs(self, record: Record, others: Iterable[int]) -> dict[str, Rung]:
        """Compare the batches of all sampled steps, and of ``others`` from the final
        state: in training, or in eval mode where training draws what cannot be left
        out. What one seed did not draw another may.
        """
        if self.task.whole:
            why = "the forward pass communicates: no batch is cut"
            return {"witness_mean": rung("not run", why)}
        try:
            found, why = self._of_all(record, others, evaluate=False), UNSEEN
        except Exception as error:
            found, why = None, f"in training {failure(error)}"
        if found and not self.drew:
            return {"witness_mean": found}
        try:
            still = self._of_all(record, others, evaluate=True)
        except Exception as error:
            still = rung("not run", f"in eval mode {failure(error)}")
        return {"witness_mean": rung("not run", why), "witness_mean_in_eval": still}

    def _of_all(self, record: Record, others: Iterable[int], evaluate: bool) -> Rung:
        # the first batch that is not the mean of its parts, or the farthest one
        worst = -1.0
        asked: list[tuple[int, State]]
        asked = [(step, record.of(step, "before")) for step in record.steps()]
        asked += [(step, record.state) for step in others]
        for step, state in asked:
            found = self.ask(step, state, evaluate)
            if found and found["verdict"] != FINE:
                return found
            worst = max(worst, found["max_abs_diff"] if found else -1.0)
        if worst < 0:
            return rung("not run", "no batch has two parts with targets")
        return rung(FINE, "each batch is the mean of its parts", worst)

    def _parts(self, step: int) -> list[list[Any]]:
        # those that have targets, each from the same buffers
        own = [part for group in self.computer.groups_of(step) for part in group]
        if len(own) < 2 and not self.task.whole:
            own = cuts(self.computer.batch_of(step), 2)
        return [[part] for part in own if self.task.count(part)]

    def ask(self, step: int, state: State, evaluate: bool) -> Rung | None:
        """Compare one batch; None where it has no two parts with targets."""
        if not evaluate and step in self.known:
            return self.known[step]
        given: dict[str, Any] = {"evaluate": evaluate, "steady": not evaluate}
        batch, parts = self.computer.batch_of(step), self._parts(step)
        self.whole = self.computer.exact(state, [[batch]], **given)
        self.drew |= self.computer.drew
        found = None
        if len(parts) > 1:
            shares = self.computer.exact(state, parts, **given)
            self.drew |= self.computer.drew
            found = self._compared(step, state, parts, shares, given)
        if not evaluate:
            self.known[step] = found
        return found

    def _compared(
        self,
        step: int,
        state: State,
        parts: list[list[Any]],
        shares: Pass,
        given: dict[str, Any],
    ) -> Rung:
        close = CLOSE[self.computer.type]
        if not (self.whole.is_finite() and shares.is_finite()):
            return rung("breach", "the loss or its gradient is not finite")
        apart = shares.far_from(self.whole)
        if apart <= close:
            return rung(FINE, "a batch is the mean of its parts", apart)
        each = [self.computer.exact(state, [part], **given) for part in parts]
        counts = torch.tensor([float(self.task.count(part)) for (part,) in parts])
        by_count = (counts / counts.sum()).double()
        # the weights that the parts have instead, if any
        matrix = torch.stack([one.flat(self.whole) for one in each], 1)
        wanted = self.whole.flat(self.whole)
        fit = torch.linalg.lstsq(matrix, wanted[:, None]).solution[:, 0]
        rest = float((matrix @ fit - wanted).norm() / (wanted.norm() + 1e-300))
        if rest > close or float((fit - by_count).abs().max()) <= close:
            mode = "in eval mode" if given["evaluate"] else "in training"
            why = f"{mode} a sample's loss depends on other samples of its batch"
            if self.computer.failed:
                why = f"{self.computer.failed}; in its own precision {why}, or rounds"
            return rung("not run", f"step {step}: {why}", apart)
        has, said = (
            ", ".join(f"{x:.4g}" for x in weights[:SHOWN])
            for weights in (fit.tolist(), by_count.tolist())
        )
        why = f"parts of the batch of step {step} have the weights {has}, by their "
        why += f"targets {said}"
        if float((fit - 1).abs().max()) <= close:
            why += ": it is a sum"
        why += "; is it a mean over what is counted?"
        return rung("breach", f"the loss is no mean over the targets: {why}", apart)


def buffers_rung(computer: Computer, record: Record) -> Rung | None:
    """Compare the buffers that two ranks leave after a pass from one state, and the
    loss and gradient of one part from each; None where no buffer may change.
    """
    names = _own_buffers(computer.own)
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
    named = (
        f"{', '.join(apart[:SHOWN_BUFFERS])}{', ...' if apart[SHOWN_BUFFERS:] else ''}"
    )
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
