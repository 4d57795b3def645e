"""Comparison of a run's losses and gradients with the mean over the whole batch.

The limit is measured. In the run's own precision, the witness computes a gradient from
states one unit in the last place away, with other slices of the batch; per tensor,
``FACTOR`` times its distance to the float64 gradient is allowed. A wrong gradient is
off by thousands. If training draws random numbers, several draws are compared.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.witness.mean import FINE, MEAN_TOLERANCE, Asked, ask
from minitrain.proof.witness.passes import (
    SIXTEEN_BITS,
    Computer,
    Groups,
    Pass,
    State,
    failure,
    size,
)
from minitrain.proof.witness.record import (
    NO_GAP,
    Gap,
    RungDict,
    Task,
    compare,
    cuts,
    largest,
    rung,
)

FACTOR = 16
# with more noise, as a share of the gradient, nothing is judged
NOISE = 0.5
# up to this much noise, its projection on the right gradient must still be close to 1
ALONG_NOISE, ALONG = 8.0, 0.4
# share of the largest gradient by which 16-bit numbers may miss an exact zero
SIXTEEN_BIT_FLOOR = 1e-4
# draws, more of them before a breach, and allowed standard deviations
NUM_DRAWS, MANY_DRAWS, DEVIATIONS = 8, 256, 8
# elements kept of each draw of a gradient, which bounds memory
NUM_ELEMENTS = 65536


def probe_rungs(computer: Computer, training: RungDict) -> dict[str, RungDict]:
    """Compare the run's gradient in eval mode (the probe), which has no random numbers,
    with the witness's gradient of the whole batch, not sliced. ``training`` is the rung
    ``witness_mean`` of :func:`mean_rungs`. Return rungs (results) by name.
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
    (step,) = steps
    try:
        whole, (mean, _) = ask(computer, step, record.state, evaluate=True)
        if mean is None or mean["verdict"] == FINE:
            return {names[n]: _probed(computer, row, whole) for n, row in rows.items()}
        # an effect of eval mode only is not a fault of training
        verdict = "not run" if training["verdict"] == FINE else mean["verdict"]
        one = rung(verdict, mean["detail"])
    except Exception as error:
        one = rung("not run", f"in eval mode {failure(error)}")
    return dict.fromkeys(names.values(), one)


def _probed(computer: Computer, row: Mapping[str, Any], whole: Pass) -> RungDict:
    state, step, name = computer.record.state, row["step"], row["name"]
    bits = computer.task.precision if name == "rounded" else "float32"
    groups, own = computer.groups_of(step), computer.own_precision
    one, other = (own(state, groups, bits, True, seed) for seed in (1, 2))
    if one.far_from(other) > 0:
        return rung("not run", "the loss is random in eval mode too")
    noise = _rounding(computer, step, state, whole, True, bits, evaluate=True)
    found = Pass(row["loss"], computer.record.of(name, "gradients"))
    compared = _compare(computer.task, f"the {name}", found, whole, noise, bits)
    return compared if isinstance(compared, dict) else largest(compared).rung()


def training_rungs(computer: Computer, known: dict[int, Asked]) -> dict[str, RungDict]:
    """Compare loss and gradient of the sampled steps with the whole batch. Return rungs
    (results) by name.

    If a sample's loss depends on the rest of its slice (batch norm), compare with the
    slices instead; if on random numbers, with several draws (:func:`spread_rung`). Adds
    to ``known``, by step, whether a batch is the mean of its slices.
    """
    names = ("witness_gradients", "witness_loss")
    try:
        # any draw counts: one without an effect now may have one in the next step
        if any(_drawn(computer, step).drew for step in computer.record.steps()):
            why = "in training the loss depends on random numbers"
            both = dict.fromkeys(names, rung("not run", why))
            return both | {"witness_spread": spread_rung(computer)}
        found = [_trained(computer, *claim, known) for claim in _claims(computer)]
    except Exception as error:
        return dict.fromkeys(names, rung("not run", f"in training {failure(error)}"))
    refused = [one for one in found if isinstance(one, dict)]
    for one in refused:
        if one["verdict"] == "breach":
            return dict.fromkeys(names, one)
    if not found:
        return dict.fromkeys(names, rung("not run", "every sampled step overflowed"))
    compared = [one for one in found if not isinstance(one, dict)]
    rungs = [largest(gaps).rung() for gaps in zip(*compared, strict=True)]
    wrong = [one for one in rungs if one["verdict"] == "breach"]
    if refused and not any(one["max_abs_diff"] is not None for one in wrong):
        return dict.fromkeys(names, refused[0])
    return dict(zip(names, rungs, strict=True))


def _claims(computer: Computer) -> Iterator[tuple[int, Pass]]:
    # what the run recorded, at each sampled step that a scaler did not skip because it
    # overflowed, which step_rung checks
    record = computer.record
    for step in record.steps():
        claim = Pass(record.losses[step], record.of(step, "gradients"))
        if computer.task.precision != "fp16" or claim.is_finite():
            yield step, claim


def _drawn(
    computer: Computer, step: int, seed: int = 0, *, evaluate: bool = False
) -> Pass:
    given = computer.record.of(step, "before"), computer.groups_of(step)
    return computer.own_precision(*given, computer.task.precision, evaluate, seed)


def _trained(
    computer: Computer, step: int, claim: Pass, known: dict[int, Asked]
) -> tuple[Gap, Gap] | RungDict:
    state, bits = computer.record.of(step, "before"), computer.task.precision
    right, alone = _right(computer, step, state, known)
    noise = _rounding(computer, step, state, right, alone, bits, evaluate=False)
    return _compare(computer.task, f"step {step}", claim, right, noise, bits)


def _right(
    computer: Computer, step: int, state: State, known: dict[int, Asked]
) -> tuple[Pass, bool]:
    # the right result of training without random numbers, and whether the loss of each
    # sample depends on that sample only. If not, slices are used: batch norm differs by
    # design, and ``witness_mean`` reports any other cause
    if not any(isinstance(one, _BatchNorm) for one in computer.own.modules()):
        whole, known[step] = ask(computer, step, state, evaluate=False)
        found, _ = known[step]
        if found is None or found["verdict"] == FINE:
            return whole, True
    whole = computer.exact(state, [[computer.batch_of(step)]], evaluate=False)
    shares = computer.exact(state, computer.groups_of(step), evaluate=False)
    alone = shares.far_from(whole) <= MEAN_TOLERANCE[computer.type]
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
    # the distance from ``right`` in the run's own precision, from this start and two
    # that are about a unit away; ``alone``: the loss of a sample depends on it only, so
    # other slices will do
    loss, far = 0.0, dict.fromkeys(right.gradients, 0.0)
    ranks, batch = computer.task.world_size, computer.batch_of(step)
    for seed, number in enumerate((1, max(2, ranks), ranks)):
        groups: Groups = computer.groups_of(step)
        if alone and not computer.task.whole:
            groups = [[part] for part in cuts(batch, number)]
        start = computer.nudged(state, seed)
        one = computer.own_precision(start, groups, bits, evaluate)
        loss = max(loss, abs(one.loss - right.loss))
        for name, wanted in right.gradients.items():
            far[name] = max(far[name], size(one.of(name, wanted) - wanted))
    gradients = {name: torch.tensor(apart) for name, apart in far.items()}
    return Pass(loss, gradients, unit=one.unit)


def _compare(
    task: Task, where: str, found: Pass, right: Pass, noise: Pass, bits: str
) -> tuple[Gap, Gap] | RungDict:
    # gaps of gradients and loss, or a rung if they cannot be compared
    if not right.is_finite():
        return rung("breach", f"{where}: the loss or its gradient is not finite")
    # by noise there are three zones: every tensor is judged, only the projection on the
    # right gradient (which noise hardly changes), or nothing
    share = noise.largest() / (right.largest() + 1e-300)
    if not FACTOR * share <= NOISE:
        wanted = right.flat(right)
        along = float(found.flat(right).double() @ wanted / (wanted @ wanted))
        if share * FACTOR < ALONG_NOISE and not 1 - ALONG <= along <= 1 + ALONG:
            why = f"its projection on the right gradient is {along:.3g} of it"
            return rung("breach", f"{where}: {why}")
        return rung("not run", f"{where}: rounding is as large as the gradient")
    # less than a 99th of what rounding to 16 bits leaves: the run used finer numbers
    if bits in SIXTEEN_BITS and found.far_from(right) < share / 99:
        return rung("breach", f"{where} is more precise than {bits} allows")
    claim, wanted = torch.tensor([found.loss, right.loss], dtype=torch.float64)
    allowed = FACTOR * (noise.loss + noise.unit * abs(right.loss))
    loss = compare(claim, wanted, allowed, f"{where}: loss {found.loss:.6g}")
    gaps = []
    for name, one in {**found.gradients, **right.gradients}.items():
        claim, wanted = found.of(name, one), right.of(name, one)
        most, carried = size(wanted), float(noise.of(name, torch.zeros(())))
        allowed = FACTOR * (carried + torch.finfo(claim.dtype).eps * most)
        if bits in SIXTEEN_BITS:
            allowed += SIXTEEN_BIT_FLOOR * right.largest()
        if task.wire is not None:
            # each rank's share is rounded, then the sum at each hop
            wire, times = torch.finfo(task.wire), 2 * task.world_size
            allowed += times * wire.eps * (most + wire.smallest_normal)
        gaps.append(compare(claim, wanted, allowed, f"{where}: gradient of {name}"))
    return largest(gaps), loss


def spread_rung(computer: Computer) -> RungDict:
    """Return a rung: random loss and gradient must lie in the spread of other draws,
    and differ from eval mode. This may refute a run but never confirms it.
    """
    worst = NO_GAP
    claims = dict(_claims(computer))
    for step in dict.fromkeys([*claims][-1:] + [*claims][:1]):
        found = _spread(computer, step, claims[step], NUM_DRAWS)
        if found.share > 1:
            # a rare draw may be missing among few
            found = _spread(computer, step, claims[step], MANY_DRAWS)
        if found.share < 0:
            return rung("not run", f"step {step}: some draws change nothing")
        worst = largest([worst, found])
    if worst.share < 0:
        return rung("not run", "every sampled step overflowed")
    return worst.rung()


def _spread(computer: Computer, step: int, claim: Pass, number: int) -> Gap:
    named = computer.own.named_parameters()
    likes = {name: p.detach() for name, p in named if p.requires_grad}
    every = 1 + sum(p.numel() for p in likes.values()) // NUM_ELEMENTS

    def chosen(one: Pass) -> Tensor:
        # some elements of each tensor, which bounds memory
        parts = [one.of(n, like).flatten()[::every] for n, like in likes.items()]
        return torch.cat(parts).double()

    def drawn(seed: int, evaluate: bool = False) -> tuple[float, Tensor]:
        one = _drawn(computer, step, seed, evaluate=evaluate)
        return one.loss, chosen(one)

    losses, rows = zip(*map(drawn, range(number)), strict=True)
    values, flat = torch.tensor(losses, dtype=torch.float64), torch.stack(rows)
    if len(flat.unique(dim=0)) < number:
        return NO_GAP
    found, mean = chosen(claim), flat.mean(0)
    # each draw from the mean of the others
    apart = (flat - mean).norm(dim=1) * number / (number - 1)
    gaps = []
    for what, one, draws in (
        ("loss", torch.tensor(claim.loss, dtype=torch.float64), values),
        ("gradient along its mean", found @ mean, flat @ mean),
    ):
        allowed = DEVIATIONS * float(draws.std()) + 1e-3 * size(draws)
        gaps.append(compare(one, draws.mean(), allowed, f"step {step}: {what}"))
    allowed = float(apart.mean()) + DEVIATIONS * float(apart.std())
    what = f"step {step}: distance from the mean of {number} draws"
    gaps.append(compare((found - mean).norm(), torch.zeros(()), allowed, what))
    try:
        _, still = drawn(0, evaluate=True)
    except Exception:
        return largest(gaps)
    # a run that left out its dropout equals eval mode up to rounding, which is less
    # than a hundredth of the distance of the nearest draw
    nearest = float((flat - still).norm(dim=1).min())
    if float((found - still).norm()) < nearest / 100:
        return Gap(torch.inf, torch.inf, f"step {step}: equal to eval mode")
    return largest(gaps)
