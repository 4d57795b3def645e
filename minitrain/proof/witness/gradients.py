"""The run's losses and gradients against those of the mean over a whole batch.

What rounding may do is measured and not guessed: the same gradient in the run's own
precision, from states one unit in the last place away and with the batch cut otherwise,
is so far from float64 in each tensor. ``FACTOR`` times that is allowed, and a wrong
gradient is off by thousands. Where training draws random numbers, draws are compared.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.witness.mean import CLOSE, FINE, Asked, ask
from minitrain.proof.witness.passes import (
    SIXTEEN_BITS,
    Computer,
    Groups,
    Pass,
    State,
    failure,
    gap,
    size,
)
from minitrain.proof.witness.record import (
    NO_GAP,
    Gap,
    Rung,
    Task,
    compare,
    cuts,
    largest,
    rung,
)

FACTOR = 16
# more noise than this share of the gradient judges nothing
NOISE = 0.5
# up to this much it must still be about the right one along it
ALONG_NOISE, ALONG = 8.0, 0.4
# of the largest gradient, where numbers have 16 bits: of a true zero something is left
SIXTEEN_BIT_FLOOR = 1e-4
# first few draws, and many where a few would refuse; standard deviations of them
NUM_DRAWS, MANY_DRAWS, DEVIATIONS = 8, 256, 8
# of a gradient: many draws of all elements would not fit in memory
NUM_ELEMENTS = 65536


def repeats(computer: Computer) -> bool:
    """Return whether the same pass from the same state gives the same again."""
    given = computer.record.of(0, "before"), computer.groups_of(0)
    try:
        one, other = (
            computer.own_precision(*given, computer.task.precision, evaluate=False)
            for _ in range(2)
        )
        return not one.far_from(other) > 0
    except RuntimeError:
        # who asks for the gradients says why not
        return True


def probe_rungs(computer: Computer, mean: Rung) -> dict[str, Rung]:
    """Compare in eval mode, where the loss of a sample depends on no random number: the
    run's gradient with that of the whole batch, never with that of the parts. ``mean``
    is what was found of batches and their parts.
    """
    record = computer.record
    for row in record.kind("no probe"):
        return {"witness_probe": rung("not run", f"in eval mode: {row['reason']}")}
    names = {"probe": "witness_probe"}
    if computer.task.precision in SIXTEEN_BITS:
        names["rounded"] = "witness_precision"
    rows = {row["name"]: row for row in record.kind("probe")}
    steps = {row["step"] for row in rows.values()}
    found = all(record.of(name, "gradients") for name in rows)
    if rows.keys() != names.keys() or len(steps) != 1 or not found:
        return {"witness_probe": rung("breach", "no probe was recorded")}

    def every(verdict: str, why: str) -> dict[str, Rung]:
        return dict.fromkeys(names.values(), rung(verdict, why))

    (step,) = steps
    if mean["verdict"] == "breach":
        return every("not run", "see witness_mean")
    try:
        whole, asked = ask(computer, step, record.state, evaluate=True)
    except Exception as error:
        return every("not run", f"in eval mode {failure(error)}")
    if asked.found and asked.found["verdict"] != FINE:
        # what eval mode alone does is no fault of the training that was seen
        verdict = "not run" if mean["verdict"] == FINE else asked.found["verdict"]
        return every(verdict, asked.found["detail"])
    return {names[name]: _probed(computer, row, whole) for name, row in rows.items()}


def _probed(computer: Computer, row: Mapping[str, Any], whole: Pass) -> Rung:
    state, step, name = computer.record.state, row["step"], row["name"]
    bits = computer.task.precision if name == "rounded" else "float32"
    groups, own = computer.groups_of(step), computer.own_precision
    try:
        one, other = (own(state, groups, bits, True, seed) for seed in (1, 2))
        noise = _rounding(computer, step, state, whole, True, bits, evaluate=True)
    except RuntimeError as error:
        return rung("not run", f"in {bits} {str(error)[:100]}")
    if one.far_from(other) > 0:
        return rung("not run", "in eval mode too the loss is a random number")
    found = Pass(row["loss"], computer.record.of(name, "gradients"))
    compared = _compare(computer.task, f"the {name}", found, whole, noise, bits)
    return compared if isinstance(compared, dict) else largest(compared).rung()


def training_rungs(computer: Computer, known: dict[int, Asked]) -> dict[str, Rung]:
    """Compare the sampled steps. Where the loss of a sample depends on nothing else,
    with the whole batch; where it depends on its part of the batch (batch norm), with
    the parts; where on random numbers, only how far those carry it. ``known`` gets what
    was found of batches and their parts on the way, by step.
    """
    names = ("witness_gradients", "witness_loss")
    bits, record = computer.task.precision, computer.record
    try:
        # a random number, used or not: one that did not matter this time may the next
        random = any(
            computer.own_precision(
                record.of(step, "before"), computer.groups_of(step), bits, False
            ).drew
            for step in record.steps()
        )
    except RuntimeError as error:
        return dict.fromkeys(names, rung("not run", f"in {bits} {str(error)[:100]}"))
    if random:
        why = "in training the loss depends on random numbers"
        both = dict.fromkeys(names, rung("not run", why))
        return both | {"witness_spread": spread_rung(computer)}
    compared: list[tuple[Gap, Gap]] = []
    refused: list[Rung] = []
    for step in record.steps():
        found = Pass(record.losses[step], record.of(step, "gradients"))
        if bits == "fp16" and not found.is_finite():
            # the scaler leaves such a step out, as step_rung has seen
            continue
        state = record.of(step, "before")
        right, alone = _right(computer, step, state, known)
        try:
            noise = _rounding(computer, step, state, right, alone, bits, evaluate=False)
            one = _compare(computer.task, f"step {step}", found, right, noise, bits)
        except RuntimeError as error:
            one = rung("not run", f"in {bits} {str(error)[:100]}")
        if not isinstance(one, dict):
            compared.append(one)
        elif one["verdict"] == "breach":
            return dict.fromkeys(names, one)
        else:
            refused.append(one)
    if not compared and not refused:
        why = "every sampled step has overflowed"
        return dict.fromkeys(names, rung("not run", why))
    rungs = [largest(gaps).rung() for gaps in zip(*compared, strict=True)]
    wrong = [one for one in rungs if one["verdict"] == "breach"]
    if refused and not any(one["max_abs_diff"] is not None for one in wrong):
        return dict.fromkeys(names, refused[0])
    return dict(zip(names, rungs, strict=True))


def _right(
    computer: Computer, step: int, state: State, known: dict[int, Asked]
) -> tuple[Pass, bool]:
    # what training without random numbers computes, and whether the loss of each sample
    # depends on that sample alone. If not, the parts count: batch norm differs by
    # design, and of anything else ``witness_mean`` gives the cause
    if not any(isinstance(one, _BatchNorm) for one in computer.own.modules()):
        whole, known[step] = ask(computer, step, state, evaluate=False)
        found = known[step].found
        if found is None or found["verdict"] == FINE:
            return whole, True
    whole = computer.exact(state, [[computer.batch_of(step)]], evaluate=False)
    shares = computer.exact(state, computer.groups_of(step), evaluate=False)
    alone = shares.far_from(whole) <= CLOSE[computer.type]
    return (whole if alone else shares), alone


def _rounding(
    computer: Computer,
    step: int,
    state: State,
    right: Pass,
    alone: bool,
    bits: str,
    evaluate: bool,
) -> Pass:
    # how far from ``right`` the run's own precision is, one unit away
    loss, far = 0.0, dict.fromkeys(right.gradients, 0.0)
    ranks, batch = computer.task.world_size, computer.batch_of(step)
    for seed, number in enumerate((1, max(2, ranks), ranks)):
        groups: Groups = computer.groups_of(step)
        if alone and not computer.task.whole:
            # the parts that the mean was asked for
            groups = [[part] for part in cuts(batch, number)]
        start = computer.nudged(state, seed)
        one = computer.own_precision(start, groups, bits, evaluate)
        loss = max(loss, abs(one.loss - right.loss))
        for name, wanted in right.gradients.items():
            far[name] = max(far[name], gap(one.of(name, wanted), wanted))
    gradients = {name: torch.tensor(apart) for name, apart in far.items()}
    return Pass(loss, gradients, unit=one.unit)


def _compare(
    task: Task, where: str, found: Pass, right: Pass, noise: Pass, bits: str
) -> tuple[Gap, Gap] | Rung:
    # of the gradients and of the loss; or a rung, where nothing can be compared
    if not right.is_finite():
        return rung("breach", f"{where}: the loss or its gradient is not finite")
    share = noise.largest() / (right.largest() + 1e-300)
    if not FACTOR * share <= NOISE:
        # a gradient that is not even about the right one along it is wrong anyway
        wanted = right.flat(right)
        along = float(found.flat(right).double() @ wanted / (wanted @ wanted))
        if share * FACTOR < ALONG_NOISE and not 1 - ALONG <= along <= 1 + ALONG:
            why = f"along the right gradient it is {along:.3g} of it"
            return rung("breach", f"{where}: {why}")
        return rung("not run", f"{where}: rounding is as large as the gradient")
    if bits in SIXTEEN_BITS and found.far_from(right) < share / 99:
        return rung("breach", f"{where} is finer than {bits} can be")
    said, wanted = torch.tensor([found.loss, right.loss], dtype=torch.float64)
    allowed = FACTOR * (noise.loss + noise.unit * abs(right.loss))
    loss = compare(said, wanted, allowed, f"{where}: loss {found.loss:.6g}")
    gaps = []
    for name, one in {**found.gradients, **right.gradients}.items():
        said, wanted = found.of(name, one), right.of(name, one)
        most, carried = size(wanted), float(noise.of(name, torch.zeros(())))
        allowed = FACTOR * (carried + torch.finfo(said.dtype).eps * most)
        if bits in SIXTEEN_BITS:
            allowed += SIXTEEN_BIT_FLOOR * right.largest()
        if task.wire is not None:
            # each rank's share is rounded, then the sum at each hop
            wire, times = torch.finfo(task.wire), 2 * task.world_size
            allowed += times * wire.eps * (most + wire.smallest_normal)
        gaps.append(compare(said, wanted, allowed, f"{where}: gradient of {name}"))
    return largest(gaps), loss


def spread_rung(computer: Computer) -> Rung:
    """Compare the loss, the gradient along its mean and its distance from it with what
    draws of random numbers do to them; and with eval mode. This refutes only.
    """
    worst, record = NO_GAP, computer.record
    steps = record.steps()
    for step in dict.fromkeys((steps[-1], steps[0])):
        claim = Pass(record.losses[step], record.of(step, "gradients"))
        if computer.task.precision == "fp16" and not claim.is_finite():
            continue
        found = _spread(computer, step, claim, NUM_DRAWS)
        if found.share > 1:
            # what is drawn rarely is missing among few
            found = _spread(computer, step, claim, MANY_DRAWS)
        if found.share < 0:
            return rung("not run", f"step {step}: some draws change nothing")
        worst = largest([worst, found])
    if worst.share < 0:
        return rung("not run", "every sampled step has overflowed")
    return worst.rung()


def _spread(computer: Computer, step: int, claim: Pass, number: int) -> Gap:
    state, groups = computer.record.of(step, "before"), computer.groups_of(step)
    named = computer.own.named_parameters()
    trained = {name: p.detach() for name, p in named if p.requires_grad}
    every = 1 + sum(p.numel() for p in trained.values()) // NUM_ELEMENTS

    def chosen(one: Pass) -> Tensor:
        parts = [one.of(n, p).flatten()[::every] for n, p in trained.items()]
        return torch.cat(parts).double()

    def drawn(seed: int, evaluate: bool = False) -> tuple[float, Tensor]:
        bits = computer.task.precision
        one = computer.own_precision(state, groups, bits, evaluate, seed)
        return one.loss, chosen(one)

    losses, rows = zip(*map(drawn, range(number)), strict=True)
    values, flat = torch.tensor(losses, dtype=torch.float64), torch.stack(rows)
    if len(flat.unique(dim=0)) < number:
        return NO_GAP
    said, mean = chosen(claim), flat.mean(0)
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
