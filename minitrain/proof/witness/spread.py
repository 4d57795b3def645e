"""Where training draws random numbers: how far draws carry a loss and a gradient."""

from functools import partial

import torch
from torch import Tensor

from minitrain.proof.witness.passes import Computer, Pass, size
from minitrain.proof.witness.record import Record, Rung, Tensors, Worst, rung

# first few draws, and many where a few would refuse; standard deviations of them
NUM_DRAWS, MANY_DRAWS, DEVIATIONS = 8, 256, 8
NUM_ELEMENTS = 65536
# parameters of a model that is large: one of its steps alone is looked at, the last
# that has not overflowed
LARGE = 1 << 24


def spread_rung(computer: Computer, record: Record) -> Rung:
    """The loss, the gradient along its mean and its distance from it, within what draws
    of random numbers do to them; and not what eval mode gives. This refutes only.
    """
    worst, steps = Worst(), record.steps()
    count = sum(parameter.numel() for parameter in computer.own.parameters())
    for step in dict.fromkeys((steps[-1], steps[0])):
        if count > LARGE and worst.share >= 0:
            break
        claim = Pass(record.losses[step], record.of(step, "gradients"))
        if computer.task.precision == "fp16" and not claim.is_finite():
            continue
        draws = Draws(computer, record.of(step, "before"), step)
        found = _spread(draws, claim, NUM_DRAWS)
        if found.share > 1:
            # what is drawn rarely is missing among few
            found = _spread(draws, claim, MANY_DRAWS)
        if found.share < 0:
            return rung("not run", f"step {step}: some draws change nothing")
        if found.share > worst.share:
            worst, worst.where = found, f"step {step}: {found.where}"
    if worst.share < 0:
        return rung("not run", "every sampled step has overflowed")
    told = worst.rung()
    if count > LARGE:
        told["detail"] += f"; of {count / 1e6:.0f} million parameters one step alone"
    return told


class Draws:
    """Passes of one step, each with random numbers of its own; of their gradients some
    elements, always the same: many draws of all would not fit in memory.
    """

    def __init__(self, computer: Computer, state: Tensors, step: int) -> None:
        self.computer, self.state = computer, state
        self.groups, self.places = computer.groups_of(step), {}
        named = computer.own.named_parameters()
        sizes = {name: p.numel() for name, p in named if p.requires_grad}
        every, start = sum(sizes.values()), 0
        some = torch.arange(every)
        if every > NUM_ELEMENTS:
            chance = torch.Generator().manual_seed(0)
            some = torch.randint(every, (NUM_ELEMENTS,), generator=chance)
        for name, count in sizes.items():
            self.places[name] = some[(start <= some) & (some < start + count)] - start
            start += count

    def one(self, evaluate: bool, seed: int) -> Pass:
        """A pass in training, or in eval mode."""
        given = self.computer.task.precision, evaluate, seed, self.places
        return self.computer.own_precision(self.state, self.groups, *given)

    def row(self, gradients: Tensors) -> Tensor:
        """The chosen elements of gradients that have no others."""
        zeros = partial(torch.zeros, dtype=torch.float64)
        named = self.places.items()
        return torch.cat([gradients.get(n, zeros(len(where))) for n, where in named])

    def row_of_all(self, gradients: Tensors) -> Tensor:
        """The same of gradients that have all elements."""
        pairs = ((name, gradients.get(name), at) for name, at in self.places.items())
        return self.row(
            {n: g.flatten()[at].double() for n, g, at in pairs if g is not None}
        )


def _spread(draws: Draws, claim: Pass, number: int) -> Worst:
    worst = Worst()
    made = [draws.one(evaluate=False, seed=seed) for seed in range(number)]
    flat = torch.stack([draws.row(one.gradients) for one in made])
    losses = torch.tensor([one.loss for one in made], dtype=torch.float64)
    if len(flat.unique(dim=0)) < number:
        return worst
    said, mean = draws.row_of_all(claim.gradients), flat.mean(0)
    # each draw from the mean of the others
    apart = (flat - mean).norm(dim=1) * number / (number - 1)
    for what, values, one in (
        ("loss", losses, torch.tensor(claim.loss, dtype=torch.float64)),
        ("gradient along its mean", flat @ mean, said @ mean),
    ):
        allowed = DEVIATIONS * float(values.std()) + 1e-3 * size(values)
        worst.add(one, values.mean(), allowed, what)
    allowed = float(apart.mean()) + DEVIATIONS * float(apart.std())
    what = f"distance from the mean of {number} draws"
    worst.add((said - mean).norm(), torch.zeros(()), allowed, what)
    try:
        still = draws.row(draws.one(evaluate=True, seed=0).gradients)
    except Exception:
        return worst
    nearest = float((flat - still).norm(dim=1).min())
    if float((said - still).norm()) < nearest / 100:
        worst.share, worst.where = torch.inf, "as in eval mode"
    return worst
