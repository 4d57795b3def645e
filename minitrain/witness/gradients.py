"""The loss of a whole batch and the gradient of the mean over all its targets.

What rounding may do is measured and not guessed: the same gradient in the run's own
precision, from states one unit in the last place away and with the batch cut otherwise,
is so far from float64 in each tensor. ``FACTOR`` times that is allowed, and a wrong
gradient is off by thousands.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.witness.batches import cuts, doubled
from minitrain.witness.record import Record, Rung, Task, Tensors, Worst, rung

FACTOR = 16
NUM_PASSES = 3
SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# what is no mean, or no function of its samples, is farther from one; a model that
# computes partly in float32 comes as near as 2e-7
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}
BatchOf = Callable[[int], Any]


@dataclass(frozen=True)
class Pass:
    """A loss and its gradient; or how far rounding carries them, per tensor."""

    loss: float
    gradients: Tensors

    def of(self, name: str, like: Tensor) -> Tensor:
        """A gradient; that of a parameter which was not used is zero."""
        return self.gradients.get(name, torch.zeros_like(like))

    def largest(self) -> float:
        """The largest element of all gradients."""
        return max((size(g) for g in self.gradients.values()), default=0.0)

    def far_from(self, other: "Pass") -> float:
        """The largest difference, relative to the largest gradient."""
        named = other.gradients.items()
        apart = max((size(self.of(n, g) - g) for n, g in named), default=0.0)
        loss = abs(self.loss - other.loss) / (abs(other.loss) + 1e-300)
        return max(loss, apart / (other.largest() + 1e-300))

    def flat(self) -> Tensor:
        """All gradients, one after the other."""
        return torch.cat([g.flatten() for g in self.gradients.values()])


def size(tensor: Tensor) -> float:
    """The largest absolute value."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


class Judge:
    """Computes losses and gradients, and what rounding does to them."""

    def __init__(self, task: Task) -> None:
        self.task, self.own, self.fine = task, task.build(), task.build()
        self.modes = [module.training for module in self.own.modules()]
        self.type = torch.float64

    def probe(self, record: Record, batch_of: BatchOf) -> dict[str, Rung]:
        """In eval mode, where the loss of a sample depends on no random number and on
        no other sample: a batch is the mean of its parts, and the run's gradient its.
        """
        rows = {row["name"]: row for row in record.kind("probe")}
        last = record.steps()[-1]
        batch, state = batch_of(last), record.state
        try:
            whole = self.exact(state, [batch], evaluate=True)
        except Exception as error:
            why = f"in eval mode {type(error).__name__}: {str(error)[:100]}"
            return {"witness_probe": rung("not run", why)}
        wanted = {
            "probe",
            *(["rounded"] if self.task.precision in SIXTEEN_BITS else []),
        }
        if rows.keys() != wanted or {row["step"] for row in rows.values()} != {last}:
            return {"witness_probe": rung("breach", "no probe was recorded")}
        mean = self.mean_rung(state, batch, whole)
        found = {"witness_mean": mean}
        for name, row in rows.items():
            key = "witness_precision" if name == "rounded" else "witness_probe"
            bits = self.task.precision if name == "rounded" else "float32"
            claim = Pass(row["loss"], record.of(name, "gradients"))
            if mean["verdict"] != "within tolerance":
                found[key] = rung("not run", "see witness_mean")
            else:
                found[key] = self.probed(name, claim, batch, whole, bits, state)
        return found

    def probed(
        self,
        name: str,
        claim: Pass,
        batch: Any,
        whole: Pass,
        bits: str,
        state: Mapping[str, Tensor],
    ) -> Rung:
        """One probe of the run against the right loss and gradient."""
        noise = self.rounding(state, batch, whole, bits, evaluate=True)
        if name == "rounded" and claim.far_from(whole) < noise_share(noise, whole) / 99:
            return rung("breach", f"this is finer than {bits} can be")
        worst = Worst()
        self.compare(worst, worst, claim, whole, noise, f"the {name}")
        return worst.rung()

    def training(self, record: Record, batch_of: BatchOf) -> dict[str, Rung]:
        """The sampled steps themselves, where also in training the loss of a sample
        depends on nothing else.
        """
        losses, gradients = Worst(), Worst()
        bits = self.task.precision
        for step in record.steps():
            batch, state = batch_of(step), record.of(step, "before")
            whole = self.exact(state, [batch], evaluate=False, seed=1)
            if step == 0:
                parts = self.exact(state, cuts(batch, 2), evaluate=False, seed=2)
                if parts.far_from(whole) > CLOSE[self.type]:
                    why = "in training a sample's loss depends on more than the sample"
                    names = ("witness_gradients", "witness_loss")
                    return {name: rung("not run", why) for name in names}
            noise = self.rounding(state, batch, whole, bits, evaluate=False)
            claim = Pass(record.losses[step], record.of(step, "gradients"))
            self.compare(losses, gradients, claim, whole, noise, f"step {step}")
        return {"witness_gradients": gradients.rung(), "witness_loss": losses.rung()}

    def mean_rung(self, state: Mapping[str, Tensor], batch: Any, whole: Pass) -> Rung:
        """A batch's loss and gradient are the mean of its halves', by their targets."""
        halves = cuts(batch, 2)
        together = self.exact(state, halves, evaluate=True)
        apart = together.far_from(whole)
        if apart <= CLOSE[self.type]:
            return rung("within tolerance", "a batch is the mean of its halves", apart)
        each = [self.exact(state, [half], evaluate=True) for half in halves]
        matrix, wanted = torch.stack([half.flat() for half in each], 1), whole.flat()
        fit = torch.linalg.lstsq(matrix, wanted[:, None]).solution
        rest = (matrix @ fit)[:, 0] - wanted
        if float(rest.norm() / wanted.norm()) > CLOSE[self.type]:
            why = "in eval mode too a sample's loss depends on more than the sample"
            return rung("not run", why, apart)
        counts = [self.task.count(half) for half in halves]
        said = " and ".join(f"{count / sum(counts):.4g}" for count in counts)
        has = " and ".join(f"{float(share):.4g}" for share in fit)
        why = f"halves of a batch have the weights {has}, by their targets {said}"
        return rung("breach", f"the loss is no mean over the targets: {why}", apart)

    def exact(
        self,
        state: Mapping[str, Tensor],
        parts: list[Any],
        evaluate: bool,
        seed: int = 0,
    ) -> Pass:
        """In float64; in the model's own type where it cannot compute in that."""
        if self.type == torch.float64:
            kept = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                fine = [doubled(part) for part in parts]
                return self.gradient(self.fine.double(), state, fine, evaluate, seed)
            except RuntimeError:
                self.type, self.fine = torch.float32, self.own
            finally:
                torch.set_default_dtype(kept)
        return self.gradient(self.fine, state, parts, evaluate, seed)

    def rounding(
        self,
        state: Mapping[str, Tensor],
        batch: Any,
        whole: Pass,
        bits: str,
        evaluate: bool,
    ) -> Pass:
        """How far from ``whole`` the run's own precision is, one unit away."""
        loss, far = 0.0, dict.fromkeys(whole.gradients, 0.0)
        dtype = SIXTEEN_BITS.get(bits)
        for seed in range(NUM_PASSES):
            parts = cuts(batch, (1, 2, self.task.world_size)[seed % 3])
            with torch.autocast("cpu", dtype) if dtype else nullcontext():
                start = nudged(state, seed)
                one = self.gradient(self.own, start, parts, evaluate, seed)
            loss = max(loss, abs(one.loss - whole.loss))
            for name, wanted in whole.gradients.items():
                far[name] = max(far[name], size(one.of(name, wanted) - wanted))
        return Pass(loss, {name: torch.tensor(apart) for name, apart in far.items()})

    def compare(
        self,
        losses: Worst,
        gradients: Worst,
        claim: Pass,
        whole: Pass,
        noise: Pass,
        where: str,
    ) -> None:
        """Hold a recorded loss and gradient against the right ones."""
        unit = max(torch.finfo(g.dtype).eps for g in claim.gradients.values())
        allowed = FACTOR * (noise.loss + unit * abs(whole.loss))
        said, right = torch.tensor([claim.loss, whole.loss], dtype=torch.float64)
        losses.add(said, right, allowed, f"{where}: loss {claim.loss:.6g}")
        for name, one in {**claim.gradients, **whole.gradients}.items():
            wanted, found = whole.of(name, one), claim.of(name, one)
            carried = float(noise.of(name, torch.zeros(())))
            allowed = FACTOR * (carried + unit * size(wanted))
            if self.task.wire is not None:
                # each rank's share is rounded, then the sum at each hop
                wire, times = torch.finfo(self.task.wire), 2 * self.task.world_size
                allowed += times * (wire.eps * size(wanted) + wire.smallest_normal)
            gradients.add(found, wanted, allowed, f"{where}: gradient of {name}")

    def gradient(
        self,
        model: nn.Module,
        state: Mapping[str, Tensor],
        parts: list[Any],
        evaluate: bool,
        seed: int,
    ) -> Pass:
        """Of the mean over the targets of all parts, naively."""
        torch.manual_seed(seed)
        model.load_state_dict(state)
        for module, mode in zip(model.modules(), self.modes, strict=True):
            module.training = mode and not evaluate
        counts = [self.task.count(part) for part in parts]
        total = 0.0
        found: Tensors = {}
        for part, count in zip(parts, counts, strict=True):
            if not count:
                continue
            model.zero_grad()
            loss = self.task.loss(model, part) * (count / sum(counts))
            loss.backward()
            total += loss.item()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    own = parameter.grad.double()
                    found[name] = found[name] + own if name in found else own.clone()
        return Pass(total, found)


def noise_share(noise: Pass, whole: Pass) -> float:
    """The largest rounding of all, relative to the largest gradient."""
    return noise.largest() / (whole.largest() + 1e-300)


def nudged(state: Mapping[str, Tensor], seed: int) -> Tensors:
    """A state with every number one unit in the last place up or down; 0: as it is."""
    if seed == 0:
        return dict(state)
    chance = torch.Generator().manual_seed(seed)
    moved = dict(state)
    for name, tensor in state.items():
        if tensor.is_floating_point():
            sign = torch.randint(0, 2, tensor.shape, generator=chance) * 2.0 - 1
            unit = torch.finfo(tensor.dtype).eps
            moved[name] = (tensor.double() * (1 + unit * sign)).to(tensor.dtype)
    return moved
