"""Where training draws random numbers: how far draws carry a loss and a gradient."""

import torch
from torch import Tensor

from minitrain.proof.witness.passes import Computer, Groups, GroupsOf, Pass, size
from minitrain.proof.witness.record import Record, Rung, Tensors, Worst, rung

# first few draws, and many where a few would refuse; standard deviations of them
NUM_DRAWS, MANY_DRAWS, DEVIATIONS = 16, 256, 8
NUM_ELEMENTS = 65536


def spread_rung(computer: Computer, record: Record, groups_of: GroupsOf) -> Rung:
    """Where training draws random numbers: the loss, the gradient along its mean
    and its distance from it, within what draws do to them; and not what eval mode
    gives. This refutes and proves not.
    """
    worst, steps = Worst(), record.steps()
    for step in sorted({steps[0], steps[-1]}):
        claim = Pass(record.losses[step], record.of(step, "gradients"))
        if computer.task.precision == "fp16" and not claim.is_finite():
            continue
        state = record.of(step, "before")
        for number in (NUM_DRAWS, MANY_DRAWS):
            found = spread(computer, state, groups_of(step), claim, number)
            # what is drawn rarely is missing among few
            if found.share <= 1:
                break
        if found.share < 0:
            return rung("not run", f"step {step}: some draws change nothing")
        if found.share > worst.share:
            worst, worst.where = found, f"step {step}: {found.where}"
    if worst.share < 0:
        return rung("not run", "every sampled step has overflowed")
    return worst.rung()


def choice(one: Pass) -> Tensor:
    """Some elements of a gradient, always the same: all would not fit in memory."""
    count = one.flat(one).numel()
    if count <= NUM_ELEMENTS:
        return torch.arange(count)
    chance = torch.Generator().manual_seed(0)
    return torch.randint(count, (NUM_ELEMENTS,), generator=chance)


def spread(
    computer: Computer, state: Tensors, groups: Groups, claim: Pass, number: int
) -> Worst:
    """How far a recorded step is from so many draws."""
    worst = Worst()
    bits = computer.task.precision
    first = computer.own_precision(state, groups, bits, False)
    some = choice(first)
    rows, each = [], []
    for seed in range(number):
        draw = computer.own_precision(state, groups, bits, False, seed)
        rows.append(draw.flat(first)[some])
        each.append(draw.loss)
    flat, losses = torch.stack(rows), torch.tensor(each, dtype=torch.float64)
    if len(flat.unique(dim=0)) < number:
        return worst
    said, mean = claim.flat(first).double()[some], flat.mean(0)
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
        still = computer.own_precision(state, groups, bits, True).flat(first)[some]
    except Exception:
        return worst
    nearest = float((flat - still).norm(dim=1).min())
    if float((said - still).norm()) < nearest / 100:
        worst.share, worst.where = torch.inf, "as in eval mode"
    return worst
