"""Validation of the arguments of ``check_data_parallel``, with a trial of the model."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import nn

from minitrain.analysis.verdicts import RunVerdict
from minitrain.check.trial import alone, in_memory_of
from minitrain.core.errors import UserError
from minitrain.core.params import OptimizerName, PrecisionName
from minitrain.core.schema import Count, PositiveFloat, Section, Seed, validated
from minitrain.data.batches import causal_lm_loss
from minitrain.data.cut import InMemory, count_targets, tensors_of
from minitrain.model.factory import Wrapped, computed_loss, make_model, try_model
from minitrain.sync.catalog import find_strategy
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.sync.guarantees import Tuning
from minitrain.sync.strategy import Strategy, copy_buffers, load_buffers, trained
from minitrain.train.config import RunConfig, whole_batches
from minitrain.train.precision import Precision
from minitrain.train.rng import seed_everything, untouched_random_state

# pytest omits these functions from the traceback that it shows
__tracebackhide__ = True

# prefix of the keys of params.yaml that are arguments here, as messages write it
SECTION = re.compile(r"(?<!')\btrain\.")
NO_LOSS = (
    "; without a loss of yours, model(**batch).loss is computed; for other models give "
    "batches and loss (--batches, --loss)"
)
TwoOrMore = Annotated[int, Field(ge=2)]


class Settings(Section):
    """Schema of the arguments whose limits do not depend on the model."""

    world_size: TwoOrMore
    steps: TwoOrMore | None
    grad_accumulation_steps: Count
    precision: PrecisionName
    optimizer: OptimizerName
    learning_rate: PositiveFloat
    seed: Seed
    timeout_s: PositiveFloat
    accept: Annotated[tuple[RunVerdict, ...], Field(strict=False)]
    atol: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    logical_shards: Count
    loss: Callable[..., Any] | None
    count: Callable[..., Any] | None
    show: bool


def by_argument(error: Exception) -> Exception:
    """Return ``error`` without its traceback. In the message of a UserError, keys of
    params.yaml (``train.seed``) become names of arguments (``seed``).
    """
    if isinstance(error, UserError):
        error.args = (SECTION.sub("", str(error)),)
    return error.with_traceback(None)


def described(error: BaseException) -> str:
    """Return the type and message of an error of a user's function, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def as_config(
    factory: Callable[[], nn.Module],
    batches: Iterable[Any],
    sync: str | type[Strategy],
    tuning: Tuning,
    **settings: Any,
) -> RunConfig:
    """Convert arguments of ``check_data_parallel`` to a RunConfig. ``settings``: the
    fields of :class:`Settings` without ``logical_shards``. Raises UserError if invalid.
    """
    shards = tuning.logical_shards
    given = validated({**settings, "logical_shards": shards}, Settings)
    kept = read_batches(batches, given.steps)
    count = _whole_number(given.count or count_targets)
    return RunConfig(
        factory=factory,
        data=InMemory(kept, given.loss or causal_lm_loss, count),
        sync=find_strategy(sync) if isinstance(sync, str) else sync,
        tuning=tuning,
        steps=given.steps or max(2, len(kept)),
        optimizer=given.optimizer,
        learning_rate=given.learning_rate,
        precision=given.precision,
        grad_accumulation_steps=given.grad_accumulation_steps,
        seed=given.seed,
    )


def read_batches(batches: Any, steps: int | None) -> list[Any]:
    """Return the global batches in ``batches``, an iterable or a function that returns
    one: the first ``steps``, or all. UserError if there are none, or reading fails.
    """
    # a loader may shuffle, but ranks and replay need the same batches
    with untouched_random_state():
        try:
            given = batches() if callable(batches) else batches
            found = list(islice(given, steps))
        except (Exception, SystemExit) as error:
            raise UserError(f"batches: {described(error)}") from error
    if not found:
        raise UserError("batches: is empty, must hold a global batch or more")
    return found


def _whole_number(count: Callable[[Any], Any]) -> Callable[[Any], int]:
    def number(batch: Any) -> int:
        try:
            found = count(batch)
            # a count may be a tensor
            whole = int(found)
        except (Exception, SystemExit) as error:
            raise UserError(f"count(batch): {described(error)}") from error
        if whole != found:
            raise UserError(f"count(batch) = {found}: must be a whole number")
        return whole

    return number


def refuse_what_cannot_be(config: RunConfig, world_size: int) -> None:
    """Raise UserError if settings, batches, model or loss of ``config`` do not fit
    ``world_size`` ranks. To find out, it also runs the model in this process.
    """
    config.sync.guarantees.require(config.tuning, world_size, config.precision)
    shards = config.num_shards(world_size)
    parts = shards * config.grad_accumulation_steps
    every = config.batches(range(shards), shards)
    for step, batch in enumerate(in_memory_of(config).batches):
        name = f"batches[{step}]"
        _refuse_batch(name, batch, parts)
        for part in every.micro_batches(step):
            # the mean over no target is NaN, and so is its product with 0
            if not part.num_targets:
                raise UserError(f"{name}: shard {part.shard} of {shards} has no target")
    _refuse_model(config, world_size)


def _refuse_batch(name: str, batch: Any, parts: int) -> None:
    lengths = {len(t) if t.dim() else 0 for t in tensors_of(batch)}
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no tensor"
        raise UserError(f"{name}: all tensors must have one length, found {found}")
    (length,) = lengths
    if length < parts:
        raise UserError(
            f"{name}: {length} samples cannot be cut into {parts} parts "
            "(world_size or logical_shards, times grad_accumulation_steps)"
        )
    for value in _uncut(batch):
        if len(value) == length:
            raise UserError(
                f"{name}: holds a {type(value).__name__} of {length}, which would not "
                "be cut; make it a tensor, or give it to the loss otherwise"
            )


def _uncut(batch: Any) -> Iterator[Any]:
    # yield arrays and lists that ``cut``, which slices tensors, would not split
    is_list = isinstance(batch, Sequence) and not isinstance(batch, str | bytes)
    is_array = isinstance(batch, np.ndarray) and batch.ndim
    if is_array or (is_list and not tensors_of(batch)):
        yield batch
    if is_list or isinstance(batch, Mapping):
        for value in batch if is_list else batch.values():
            yield from _uncut(value)


@alone()
def _refuse_model(config: RunConfig, world_size: int) -> None:
    first, second = _made(config), _made(config)
    both = {id(parameter) for parameter in trained(first).values()}
    for name, parameter in trained(second).items():
        if id(parameter) in both:
            raise UserError(
                f"factory: returned the same {name} twice, must make a new model each "
                "time"
            )
    part = config.batches([0], config.num_shards(world_size)).micro_batches(0)[0]
    (whole,) = whole_batches(config).batches([0], 1).micro_batches(0)
    loss = in_memory_of(config).loss
    own_loss = None if loss is causal_lm_loss else loss
    with Precision(config.precision).autocast():
        try:
            unused = config.tuning.find_unused_parameters
            try_model(first, part, loss=own_loss, may_leave_unused=unused)
        except UserError as error:
            raise UserError(f"{error}{'' if own_loss else NO_LOSS}") from None
        if own_loss is not None and issubclass(config.sync, StockDDP):
            computed_loss(Wrapped(first), part, own_loss)
        # one process computes whole batches, which a loss may not accept
        computed_loss(first, whole, own_loss)
        # a replay restores random generators and buffers, but no other state
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
