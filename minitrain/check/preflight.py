"""A model and a loss, tried before ranks start: sound and repeatable."""

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
    own_loss = None if loss is causal_lm_loss else loss
    with Precision(config.precision).autocast():
        try:
            unused = config.tuning.find_unused_parameters
            try_model(first, part, loss=own_loss, may_leave_unused=unused)
        except UserError as error:
            if own_loss is not None:
                raise
            without = "without a loss of yours, model(**batch).loss is computed"
            raise UserError(f"{error}; {without}") from None
        if own_loss is not None and issubclass(config.sync, StockDDP):
            computed_loss(Wrapped(first), part, own_loss)
        # a replay restores random numbers and buffers, and knows of nothing else
        buffers, losses = copy_buffers(second), []
        for _ in range(2):
            load_buffers(second, buffers)
            seed_everything(config.seed)
            losses.append(loss(second, part.inputs).item())
    once, again = losses
    if once != again:
        raise UserError(
            f"model: the same samples, seed and buffers give a loss of {once:.6g} and "
            f"{again:.6g}; what it draws must come from the global generators, what it "
            "or the loss remembers must be a buffer of it"
        )


def _made(config: RunConfig) -> nn.Module:
    if isinstance(config.factory, nn.Module):
        kind = type(config.factory).__name__
        raise UserError(f"factory: is a {kind}, must be a function that makes one")
    seed_everything(config.seed)
    return make_model(config.factory, "factory")
