"""Where training draws random numbers: how far draws carry a loss and a gradient."""

import torch
from torch import Tensor

from minitrain.proof.witness.passes import Computer, Pass, size
from minitrain.proof.witness.record import (
    NO_GAP,
    Gap,
    Record,
    Rung,
    compare,
    largest,
    rung,
)

# first few draws, and many where a few would refuse; standard deviations of them
NUM_DRAWS, MANY_DRAWS, DEVIATIONS = 8, 256, 8
# of a gradient: many draws of all elements would not fit in memory
NUM_ELEMENTS = 65536
# parameters of a model that is large: one of its steps alone is looked at, the last
# that has not overflowed
LARGE = 1 << 24


def spread_rung(computer: Computer, record: Record) -> Rung:
    """Compare the loss, the gradient along its mean and its distance from it with what
    draws of random numbers do to them; and with eval mode. This refutes only.
    """
    worst, steps = NO_GAP, record.steps()
    count = sum(parameter.numel() for parameter in computer.own.parameters())
    for step in dict.fromkeys((steps[-1], steps[0])):
        if count > LARGE and worst.share >= 0:
            break
        claim = Pass(record.losses[step], record.of(step, "gradients"))
        if computer.task.precision == "fp16" and not claim.is_finite():
            continue
        found = _spread(computer, record, step, claim, NUM_DRAWS)
        if found.share > 1:
            # what is drawn rarely is missing among few
            found = _spread(computer, record, step, claim, MANY_DRAWS)
        if found.share < 0:
            return rung("not run", f"step {step}: some draws change nothing")
        worst = largest([worst, found])
    if worst.share < 0:
        return rung("not run", "every sampled step has overflowed")
    told = worst.rung()
    if count > LARGE:
        told["detail"] += f"; of {count / 1e6:.0f} million parameters one step alone"
    return told


def _spread(
    computer: Computer, record: Record, step: int, claim: Pass, number: int
) -> Gap:
    state, groups = record.of(step, "before"), computer.groups_of(step)
    named = computer.own.named_parameters()
    like = Pass(0.0, {name: p.detach() for name, p in named if p.requires_grad})
    every = sum(p.numel() for p in like.gradients.values())
    some = torch.arange(every)
    if every > NUM_ELEMENTS:
        chance = torch.Generator().manual_seed(0)
        some = torch.randint(every, (NUM_ELEMENTS,), generator=chance)

    def drawn(seed: int, evaluate: bool = False) -> tuple[float, Tensor]:
        bits = computer.task.precision
        one = computer.own_precision(state, groups, bits, evaluate, seed)
        return one.loss, one.flat(like)[some]

    losses, rows = zip(*map(drawn, range(number)), strict=True)
    values, flat = torch.tensor(losses, dtype=torch.float64), torch.stack(rows)
    if len(flat.unique(dim=0)) < number:
        return NO_GAP
    said, mean = claim.flat(like).double()[some], flat.mean(0)
    # each draw from the mean of the others
    apart = (flat - mean).norm(dim=1) * number / (number - 1)
    gaps = []
    for what, found, draws in (
        ("loss", torch.tensor(claim.loss, dtype=torch.float64), values),
        ("gradient along its mean", said @ mean, flat @ mean),
    ):
        allowed = DEVIATIONS * float(draws.std()) + 1e-3 * size(draws)
        gaps.append(compare(found, draws.mean(), allowed, f"step {step}: {what}"))
    allowed = float(apart.mean()) + DEVIATIONS * float(apart.std())
    what = f"step {step}: distance from the mean of {number} draws"
    gaps.append(compare((said - mean).norm(), torch.zeros(()), allowed, what))
    try:
        _, still = drawn(0, evaluate=True)
    except Exception:
        return largest(gaps)
    nearest = float((flat - still).norm(dim=1).min())
    if float((said - still).norm()) < nearest / 100:
        return Gap(torch.inf, torch.inf, f"step {step}: as in eval mode")
    return largest(gaps)
