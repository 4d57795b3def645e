"""A model and a loss, tried before ranks start: sound, repeatable, and a mean."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from minitrain.check.trial import alone, in_memory_of, one_thread
from minitrain.core.errors import OtherMean, UserError
from minitrain.data.batches import causal_lm_loss
from minitrain.data.cut import tensors_of
from minitrain.model.factory import Wrapped, computed_loss, make_model, try_model
from minitrain.proof.witness.batches import chosen, doubled
from minitrain.proof.witness.modes import Float64, Steady
from minitrain.sync.stock import StockDDP
from minitrain.sync.strategy import trained
from minitrain.train.buffers import copy_buffers, load_buffers
from minitrain.train.config import RunConfig
from minitrain.train.precision import Precision
from minitrain.train.rng import (
    random_state,
    same_random_state,
    seed_everything,
)

# pytest leaves these functions out: between the call and the message nothing is told
__tracebackhide__ = True

# of a loss in float64, some of which may have been computed in float32
CLOSE = 1e-6
# weights that are nearer are left to the witness, which measures rounding
WEIGHTS_APART = 1e-3


def refuse_model(config: RunConfig, world_size: int) -> None:
    """Raise UserError for a factory, model or loss that no comparison is fit for."""
    first, second = _made(config), _made(config)
    both = {id(parameter) for parameter in trained(first).values()}
    shared = [name for name, p in trained(second).items() if id(p) in both]
    if first is second or shared:
        what = "the same module" if first is second else f"the same {shared[0]}"
        raise UserError(
            f"factory: returned {what} twice, must make a new one each time"
        )
    _refuse_sync_batch_norm(second)
    part = config.batches([0], config.num_shards(world_size)).micro_batches(0)[0]
    loss = in_memory_of(config).loss
    with Precision(config.precision).autocast():
        try_model(
            first,
            part,
            loss=None if loss is causal_lm_loss else loss,
            may_leave_unused=config.tuning.find_unused_parameters,
        )
        if loss is not causal_lm_loss and issubclass(config.sync, StockDDP):
            computed_loss(Wrapped(first), part, loss)
    _refuse_state_of_its_own(config, second, part.inputs)
    _refuse_other_means(config, second, world_size)


def _refuse_sync_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UserError(
                f"model: {name or 'it'} is a SyncBatchNorm, which computes on GPUs "
                "only; check runs on CPUs: build it with BatchNorm, and convert it "
                "(convert_sync_batchnorm) where you train"
            )


def _made(config: RunConfig) -> nn.Module:
    if isinstance(config.factory, nn.Module):
        kind = type(config.factory).__name__
        raise UserError(f"factory: is a {kind}, must be a function that makes one")
    seed_everything(config.seed)
    return make_model(config.factory, "factory")


def _refuse_state_of_its_own(config: RunConfig, model: nn.Module, inputs: Any) -> None:
    """A replay restores random numbers and buffers, and knows of nothing else."""
    (one, other), changed = _twice(config, model, inputs)
    if one != other:
        why = f" and {changed[0]} changes" if changed else ""
        raise UserError(
            f"model: the same samples, seed and buffers give a loss of {one:.6g}, then "
            f"{other:.6g}{why}; what it draws must come from the global generators, "
            "what it or the loss remembers must be a buffer of it"
        )


def note_on_state(config: RunConfig) -> str:
    """A line on what a forward pass leaves in the model beside its buffers; or none."""
    with one_thread(), alone():
        _, changed = _twice(
            config, config.start_model(0), in_memory_of(config).batches[0]
        )
    if not changed:
        return ""
    return (
        f"\nnote: a forward pass changes {', '.join(changed)}, no buffer; a replay, "
        "which computes all ranks with one model, cannot follow that"
    )


def _twice(
    config: RunConfig, model: nn.Module, inputs: Any
) -> tuple[list[float], list[str]]:
    buffers, before = copy_buffers(model), _own_state(model)
    losses = []
    for _ in range(2):
        load_buffers(model, buffers)
        seed_everything(config.seed)
        # a loss may ask for a gradient of its own
        with Precision(config.precision).autocast():
            losses.append(in_memory_of(config).loss(model, inputs).item())
    after = _own_state(model)
    return losses, [name for name in before if before[name] != after.get(name)]


def _own_state(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            name = ".".join(filter(None, ("model", prefix, key)))
            if isinstance(value, int | float | str | None):
                found[name] = value
            elif isinstance(value, torch.Generator):
                found[name] = value.get_state().tolist()
            elif isinstance(value, random.Random):
                found[name] = value.getstate()
            elif isinstance(value, np.random.Generator):
                found[name] = repr(value.bit_generator.state)
    return found


def _refuse_other_means(config: RunConfig, model: nn.Module, world_size: int) -> None:
    """Raise UserError where the loss of a batch is a sum, or a mean by other weights
    than the targets', beyond doubt: what is no mean of its samples at all is left to
    the witness. All batches are computed, forward only.
    """
    losses = _Losses(config, model)
    for number, batch in enumerate(losses.data.batches):
        rows = list(range(len(tensors_of(batch)[0])))
        parts = [rows[rank::world_size] for rank in range(world_size)]
        # where batches are even in all halves, there is one comparison each
        for part in parts[: world_size if world_size > 2 else 1]:
            rest = [row for row in rows if row not in {*part}]
            if part and rest:
                _refuse_weights(losses, number, part, rest)


class _Losses:
    """Losses of rows of a batch: in float64, in training without dropout, or in eval
    mode where training draws what cannot be left out.
    """

    def __init__(self, config: RunConfig, model: nn.Module) -> None:
        self.data, self.model = in_memory_of(config), model.double()
        self.training = model.training
        self.state = {k: t.clone() for k, t in model.state_dict().items()}

    def of(self, number: int, several: Sequence[list[int]]) -> list[float]:
        """Of each of these lists of rows the loss."""
        batch, before = doubled(self.data.batches[number]), random_state()
        found = [self._one(chosen(batch, rows)) for rows in several]
        if self.training and not same_random_state(before, random_state()):
            self.training = False
            return self.of(number, several)
        return found

    def _one(self, batch: Any) -> float:
        self.model.train(self.training)
        self.model.load_state_dict(self.state)
        kept = torch.get_default_dtype()
        # the loss may make tensors of its own
        torch.set_default_dtype(torch.float64)
        try:
            with Steady(), Float64():
                return self.data.loss(self.model, batch).item()
        finally:
            torch.set_default_dtype(kept)


def _refuse_weights(losses: _Losses, number: int, i: list[int], j: list[int]) -> None:
    batch = losses.data.batches[number]
    first, second = (losses.data.count(chosen(batch, part)) for part in (i, j))
    if not (first and second):
        return
    try:
        a, b, ab = losses.of(number, [i, j, i + j])
        mean = (first * a + second * b) / (first + second)
        near = CLOSE * max(map(abs, (a, b, ab)))
        if not abs(ab - mean) > near or a == b:
            return
        aab, abb = losses.of(number, [i + i + j, i + j + j])
    except Exception:
        # not made for float64, or for other numbers of rows
        return
    # what weight a part has, and whether it keeps it when the other is duplicated
    weight, share = (ab - b) / (a - b), first / (first + second)
    twice = {aab: (2 * weight, 1 - weight), abb: (weight, 2 * (1 - weight))}
    if max(abs(ab - a - b), abs(aab - 2 * a - b), abs(abb - a - 2 * b)) <= 3 * near:
        why = "it is a sum"
    elif (
        0 < weight < 1
        and abs(weight - share) > WEIGHTS_APART
        # a variance is alike to the first order
        and (weight - share) ** 2 * abs(a - b) > 10 * near
        and all(
            abs(loss - (x * a + y * b) / (x + y)) <= near
            for loss, (x, y) in twice.items()
        )
    ):
        why = f"it weighs them {weight:.3g} to {1 - weight:.3g}"
    else:
        return
    parts = f"its halves of {first} and {second} targets"
    if len(i) != (len(i) + len(j) + 1) // 2:
        parts = f"two parts of {first} and {second} targets"
    raise OtherMean(
        f"loss: is {ab:.4g} over batches[{number}], {a:.4g} and {b:.4g} over {parts}, "
        f"whose mean is {mean:.4g}: {why}, and must be a mean over what is counted"
    )
