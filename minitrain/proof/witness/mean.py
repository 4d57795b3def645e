"""Whether a batch's loss and gradient are the mean of its halves', by their targets."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from minitrain.proof.witness.batches import cuts, names_of
from minitrain.proof.witness.passes import (
    BatchOf,
    Computer,
    Groups,
    Pass,
    State,
    gap,
    relative,
)
from minitrain.proof.witness.record import Rung, rung

# what is no mean, or no function of its samples, is farther from one; a model that
# computes partly in float32 comes as near as 2e-7
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}
# elements of a gradient that are compared at a time: of three large ones not all fit
RUN = 1 << 21


class Halves:
    """Asks it of one batch, and remembers of which."""

    def __init__(self, computer: Computer, batch_of: BatchOf, steps: list[int]) -> None:
        self.computer, self.task = computer, computer.task
        self.batch_of, self.steps = batch_of, steps
        # the step whose batch is the mean of its halves in eval mode, once it is known
        self.step: int | None = None

    def rung(
        self, state: State, evaluate: bool, known: Mapping[int, Pass] | None = None
    ) -> Rung:
        """Of the batch whose poorer half is the richest. Whole batches of steps that
        are ``known`` are not computed again.
        """
        if self.task.whole:
            return rung("not run", "the forward pass communicates: no batch is cut")
        # of several the last, which the probe has computed
        latest = reversed(self.steps)
        step = max(latest, key=lambda one: self.least(cuts(self.batch_of(one), 2)))
        batch, close = self.batch_of(step), CLOSE[self.computer.type]
        halves = cuts(batch, 2)
        if len(halves) < 2 or not all(self.task.count(half) for half in halves):
            return rung("not run", "no batch has two halves with targets")
        each = [self.computer.exact(state, [[half]], evaluate) for half in halves]
        whole = (known or {}).get(step)
        if whole is None:
            whole = self.computer.exact(state, [[batch]], evaluate)
        if not all(one.is_finite() for one in (whole, *each)):
            return rung("breach", "the loss or its gradient is not finite")
        counts = torch.tensor([float(self.task.count(half)) for half in halves])
        shares = (counts / counts.sum()).double()
        losses = torch.tensor([half.loss for half in each], dtype=torch.float64)
        far = 0.0
        for *own, wanted in side_by_side(*each, whole):
            far = max(far, gap(torch.stack(own, 1) @ shares, wanted))
        apart = relative(far, float(losses @ shares), whole)
        if apart <= close:
            self.step = step if evaluate else None
            return rung("within tolerance", "a batch is the mean of its halves", apart)
        return self.weighed(each, whole, shares, close, apart, evaluate)

    def weighed(
        self,
        each: list[Pass],
        whole: Pass,
        shares: Tensor,
        close: float,
        apart: float,
        evaluate: bool,
    ) -> Rung:
        """It is not: what weights its halves have instead, if any."""
        matrix = torch.stack([half.flat(whole) for half in each], 1)
        wanted = whole.flat(whole)
        fit = torch.linalg.lstsq(matrix, wanted[:, None]).solution[:, 0]
        rest = float((matrix @ fit - wanted).norm() / (wanted.norm() + 1e-300))
        if rest > close or float((fit - shares).abs().max()) <= close:
            mode = "in eval mode too" if evaluate else "in training"
            why = f"{mode} a sample's loss depends on more than the sample"
            return rung("not run", why, apart)
        has, said = (" and ".join(f"{x:.4g}" for x in w) for w in (fit, shares))
        why = f"halves of a batch have the weights {has}, by their targets {said}"
        if float((fit - 1).abs().max()) <= close:
            why += ": it is a sum"
        why += "; is it a mean over what is counted?"
        return rung("breach", f"the loss is no mean over the targets: {why}", apart)

    def are(self, step: int, groups: Groups) -> bool:
        """Whether ``groups`` are the very halves whose mean the batch of ``step`` was
        found to be.
        """
        if step != self.step:
            return False
        named = [[names_of(part) for part in group] for group in groups]
        return named == [[names_of(half)] for half in cuts(self.batch_of(step), 2)]

    def least(self, halves: list[Any]) -> int:
        """The targets of the poorer half."""
        return min(map(self.task.count, halves)) if len(halves) == 2 else 0


def side_by_side(*passes: Pass) -> Iterator[list[Tensor]]:
    """The gradients of several passes, in the order of the last one's, some elements of
    each at a time.
    """
    rows: list[list[Tensor]] = [[] for _ in passes]
    count = 0
    for name, like in passes[-1].gradients.items():
        flat = (one.of(name, like).flatten().split(RUN) for one in passes)
        for parts in zip(*flat, strict=True):
            for row, part in zip(rows, parts, strict=True):
                row.append(part)
            count += len(parts[0])
            if count >= RUN:
                yield [torch.cat(row) for row in rows]
                rows, count = [[] for _ in passes], 0
    if count:
        yield [torch.cat(row) for row in rows]
