"""A model and a loss, tried before ranks start: sound and repeatable."""

from typing import Any

import torch
from torch import nn

from minitrain.check.trial import alone, in_memory_of
from minitrain.core.errors import UserError
from minitrain.data.batches import causal_lm_loss
from minitrain.model.factory import Wrapped, computed_loss, make_model, try_model
from minitrain.sync.stock import StockDDP
from minitrain.sync.strategy import copy_buffers, load_buffers, trained
from minitrain.train.config import RunConfig
from minitrain.train.precision import Precision
from minitrain.train.rng import seed_everything

# pytest leaves these functions out: between the call and the message nothing is told
__tracebackhide__ = True


@alone()
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
    for name, module in second.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UserError(
                f"model: {name or 'it'} is a SyncBatchNorm, which computes on GPUs "
                "only; check runs on CPUs: build it with BatchNorm, and convert it "
                "(convert_sync_batchnorm) where you train"
            )
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
    # a replay restores random numbers and buffers, and knows of nothing else
    (one, other), changed = _twice(config, second, part.inputs)
    if one != other:
        why = f" and {changed[0]} changes" if changed else ""
        raise UserError(
            f"model: the same samples, seed and buffers give a loss of {one:.6g}, then "
            f"{other:.6g}{why}; what it draws must come from the global generators, "
            "what it or the loss remembers must be a buffer of it"
        )


def _made(config: RunConfig) -> nn.Module:
    if isinstance(config.factory, nn.Module):
        kind = type(config.factory).__name__
        raise UserError(f"factory: is a {kind}, must be a function that makes one")
    seed_everything(config.seed)
    return make_model(config.factory, "factory")


@alone()
def note_on_state(config: RunConfig) -> str:
    """A line on what a forward pass leaves in the model beside its buffers; or none."""
    batch = in_memory_of(config).batches[0]
    _, changed = _twice(config, config.start_model(0), batch)
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
    return found
