"""The run's losses and gradients against those of the mean over a whole batch.

What rounding may do is measured and not guessed: the same gradient in the run's own
precision, from states one unit in the last place away and with the batch cut otherwise,
is so far from float64 in each tensor. ``FACTOR`` times that is allowed, and a wrong
gradient is off by thousands.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minitrain.proof.witness.batches import cuts
from minitrain.proof.witness.mean import CLOSE, FINE, Mean
from minitrain.proof.witness.passes import (
    SIXTEEN_BITS,
    BatchOf,
    Computer,
    Groups,
    GroupsOf,
    Pass,
    State,
    failure,
    gap,
    size,
)
from minitrain.proof.witness.record import Record, Rung, Worst, rung
from minitrain.proof.witness.spread import spread_rung

FACTOR = 16
NUM_PASSES = 3
# more noise than this share of the gradient judges nothing
NOISE = 0.5
# up to this much it must still be about the right one along it
ALONG_NOISE, ALONG = 8.0, 0.4
# of the largest gradient, where numbers have 16 bits: of a true zero something is left
SIXTEEN_BIT_FLOOR = 1e-4


class Judge:
    """Holds what a run recorded against what it should have computed."""

    def __init__(
        self, computer: Computer, record: Record, batch_of: BatchOf, groups_of: GroupsOf
    ) -> None:
        self.computer, self.task, self.record = computer, computer.task, record
        self.batch_of, self.groups_of = batch_of, groups_of
        self.steps = record.steps()
        # steps of which it is known whether training draws a random number at them
        self.drew: dict[int, bool] = {}
        self.mean = Mean(computer, batch_of, groups_of)

    def repeats(self) -> bool:
        """Whether the same pass from the same state gives the same again."""
        state, groups = self.record.of(0, "before"), self.groups_of(0)
        bits = self.task.precision
        try:
            one = self.computer.own_precision(state, groups, bits, evaluate=False)
            self.drew[0] = self.computer.drew
            other = self.computer.own_precision(state, groups, bits, evaluate=False)
        except RuntimeError:
            # who asks for the gradients says why not
            return True
        return not one.far_from(other) > 0

    def probe(self, mean: Rung) -> dict[str, Rung]:
        """Eval mode, where the loss of a sample depends on no random number: the run's
        gradient against that of the whole batch, never against that of the parts.
        ``mean`` is what was found of batches and their parts.
        """
        rows = {row["name"]: row for row in self.record.kind("probe")}
        for row in self.record.kind("no probe"):
            return {"witness_probe": rung("not run", f"in eval mode: {row['reason']}")}
        rounded = {"rounded"} if self.task.precision in SIXTEEN_BITS else set()
        step = next((row["step"] for row in rows.values()), self.steps[-1])
        if rows.keys() != {"probe"} | rounded or any(
            row["step"] != step or not self.record.of(name, "gradients")
            for name, row in rows.items()
        ):
            return {"witness_probe": rung("breach", "no probe was recorded")}
        keys = {"probe": "witness_probe", "rounded": "witness_precision"}
        names = [keys[name] for name in rows]
        if mean["verdict"] == "breach":
            return dict.fromkeys(names, rung("not run", "see witness_mean"))
        try:
            found = self.mean.ask(step, self.record.state, evaluate=True)
        except Exception as error:
            why = f"in eval mode {failure(error)}"
            return dict.fromkeys(names, rung("not run", why))
        if found and found["verdict"] != FINE:
            # what eval mode alone does is no fault of the training that was seen
            seen = mean["verdict"] == FINE
            verdict = "not run" if seen else found["verdict"]
            return dict.fromkeys(names, rung(verdict, found["detail"]))
        whole = self.mean.whole
        return {keys[name]: self.probed(name, row, whole) for name, row in rows.items()}

    def probed(self, name: str, row: Mapping[str, Any], whole: Pass) -> Rung:
        """One probe of the run against the right loss and gradient."""
        state, step = self.record.state, row["step"]
        bits = self.task.precision if name == "rounded" else "float32"
        groups, own = self.groups_of(step), self.computer.own_precision
        try:
            one, other = (own(state, groups, bits, True, seed) for seed in (1, 2))
        except RuntimeError as error:
            return rung("not run", f"in {bits} {str(error)[:100]}")
        if one.far_from(other) > 0:
            return rung("not run", "in eval mode too the loss is a random number")
        worst = Worst()
        claim = Pass(row["loss"], self.record.of(name, "gradients"))
        both, where = (worst, worst), f"the {name}"
        why = self.compare(
            *(where, claim, whole, state, step, bits),
            evaluate=True,
            alone=True,
            found=both,
        )
        return rung(*why) if why else worst.rung()

    def training(self) -> dict[str, Rung]:
        """The sampled steps themselves. Where the loss of a sample depends on nothing
        else, against the whole batch; where it depends on its part of the batch (batch
        norm), against the parts; where on random numbers, only how far those carry it.
        """
        names = ("witness_gradients", "witness_loss")
        try:
            random = any(map(self.draws, self.steps))
        except RuntimeError as error:
            why = f"in {self.task.precision} {str(error)[:100]}"
            return {name: rung("not run", why) for name in names}
        if random:
            why = "in training the loss depends on random numbers"
            not_run = {name: rung("not run", why) for name in names}
            spread = spread_rung(self.computer, self.record, self.groups_of)
            return not_run | {"witness_spread": spread}
        found = (Worst(), Worst())
        left_out: tuple[str, str] | None = None
        for step in self.steps:
            claim = Pass(self.record.losses[step], self.record.of(step, "gradients"))
            if self.task.precision == "fp16" and not claim.is_finite():
                # the scaler leaves such a step out, as step_rung has seen
                continue
            state, bits = self.record.of(step, "before"), self.task.precision
            right, alone = self.right(step, state)
            where = f"step {step}"
            refused = self.compare(
                *(where, claim, right, state, step, bits),
                evaluate=False,
                alone=alone,
                found=found,
            )
            if refused and refused[0] == "breach":
                return {name: rung(*refused) for name in names}
            left_out = left_out or refused
        losses, gradients = found
        rungs = dict(zip(names, (gradients.rung(), losses.rung()), strict=True))
        if left_out and not any(
            r["verdict"] == "breach" and r["max_abs_diff"] is not None
            for r in rungs.values()
        ):
            return {name: rung(*left_out) for name in names}
        if losses.share < 0:
            left_out = "not run", "every sampled step has overflowed"
            return {name: rung(*left_out) for name in names}
        return rungs

    def right(self, step: int, state: State) -> tuple[Pass, bool]:
        """What training without random numbers computes at a step, and whether the
        loss of each sample depends on that sample alone. If not, the parts count: batch
        norm differs by design, and of anything else ``witness_mean`` gives the cause.
        """
        if not self.computer.normalizes:
            found = self.mean.ask(step, state, evaluate=False)
            if found is None or found["verdict"] == FINE:
                return self.mean.whole, True
        whole = self.computer.exact(state, [[self.batch_of(step)]], evaluate=False)
        shares = self.computer.exact(state, self.groups_of(step), evaluate=False)
        alone = shares.far_from(whole) <= CLOSE[self.computer.type]
        return (whole if alone else shares), alone

    def draws(self, step: int) -> bool:
        """Whether training draws a random number at a step, used or not: one that did
        not matter this time may the next.
        """
        if step not in self.drew:
            state, groups = self.record.of(step, "before"), self.groups_of(step)
            # of the gradients nothing
            none = dict.fromkeys(self.computer.parameters, torch.tensor([]).long())
            given = self.task.precision, False, 0, none
            self.computer.own_precision(state, groups, *given)
            self.drew[step] = self.computer.drew
        return self.drew[step]

    def rounding(
        self,
        state: State,
        step: int,
        right: Pass,
        bits: str,
        evaluate: bool,
        alone: bool,
    ) -> Pass:
        """How far from ``right`` the run's own precision is, one unit away."""
        loss, far = 0.0, dict.fromkeys(right.gradients, 0.0)
        for seed in range(NUM_PASSES):
            groups: Groups = self.groups_of(step)
            if alone and not self.task.whole:
                # the parts that the mean was asked for
                ranks = self.task.world_size
                number = (1, max(2, ranks), ranks)[seed % 3]
                groups = [[part] for part in cuts(self.batch_of(step), number)]
            start = self.computer.nudged(state, seed)
            one = self.computer.own_precision(start, groups, bits, evaluate)
            loss = max(loss, abs(one.loss - right.loss))
            for name, wanted in right.gradients.items():
                far[name] = max(far[name], gap(one.of(name, wanted), wanted))
        return Pass(loss, {name: torch.tensor(apart) for name, apart in far.items()})

    def compare(
        self,
        where: str,
        claim: Pass,
        right: Pass,
        state: State,
        step: int,
        bits: str,
        *,
        evaluate: bool,
        alone: bool,
        found: tuple[Worst, Worst],
    ) -> tuple[str, str] | None:
        """Hold a recorded loss and gradient, in eval mode or not, against the right
        ones; or a verdict with its reason, where nothing can be compared.
        """
        if not right.is_finite():
            return "breach", f"{where}: the loss or its gradient is not finite"
        try:
            noise = self.rounding(state, step, right, bits, evaluate, alone)
        except RuntimeError as error:
            return "not run", f"in {bits} {str(error)[:100]}"
        share = noise.largest() / (right.largest() + 1e-300)
        if not FACTOR * share <= NOISE:
            if share * FACTOR < ALONG_NOISE:
                turned = self.turned(claim, right)
                if turned:
                    return "breach", f"{where}: {turned}"
            return "not run", f"{where}: rounding is as large as the gradient"
        if bits in SIXTEEN_BITS and claim.far_from(right) < share / 99:
            return "breach", f"{where} is finer than {bits} can be"
        losses, gradients = found
        said, wanted = torch.tensor([claim.loss, right.loss], dtype=torch.float64)
        allowed = FACTOR * (noise.loss + self.computer.loss_unit * abs(right.loss))
        losses.add(said, wanted, allowed, f"{where}: loss {claim.loss:.6g}")
        for name, one in {**claim.gradients, **right.gradients}.items():
            allowed = self.allowed(claim.of(name, one), right, noise, bits, name)
            label = f"{where}: gradient of {name}"
            gradients.add(claim.of(name, one), right.of(name, one), allowed, label)
        return None

    def turned(self, claim: Pass, right: Pass) -> str:
        """Whether a gradient is not even about the right one along it."""
        wanted = right.flat(right)
        along = float(claim.flat(right).double() @ wanted / (wanted @ wanted))
        if 1 - ALONG <= along <= 1 + ALONG:
            return ""
        return f"along the right gradient it is {along:.3g} of it"

    def allowed(
        self, said: Tensor, right: Pass, noise: Pass, bits: str, name: str
    ) -> float:
        """How far a tensor's gradient may be off."""
        largest = size(right.of(name, said))
        unit = torch.finfo(said.dtype).eps
        carried = float(noise.of(name, torch.zeros(())))
        allowed = FACTOR * (carried + unit * largest)
        if bits in SIXTEEN_BITS:
            allowed += SIXTEEN_BIT_FLOOR * right.largest()
        if self.task.wire is not None:
            # each rank's share is rounded, then the sum at each hop
            wire, times = torch.finfo(self.task.wire), 2 * self.task.world_size
            allowed += times * wire.eps * (largest + wire.smallest_normal)
        return allowed
