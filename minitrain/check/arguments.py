"""Validation of the arguments of ``check_data_parallel``, with a trial of the model."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import nn

from minitrain.analysis.verdicts import VERDICTS
from minitrain.check.trial import alone, in_memory_of
from minitrain.core.errors import UserError
from minitrain.core.params import OptimizerName, PrecisionName
from minitrain.core.schema import Count, PositiveFloat, Section, Seed, validated
from minitrain.data.batches import causal_lm_loss
from minitrain.data.cut import InMemory, count_targets, tensors_of
from minitrain.model.factory import Wrapped, computed_loss, make_model, try_model
from minitrain.sync.catalog import find_strategy
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.sync.guarantees import Defaults, Tuning
from minitrain.sync.strategy import Strategy, copy_buffers, load_buffers, trained
from minitrain.train.config import RunConfig, whole_batches
from minitrain.train.precision import Precision
from minitrain.train.rng import seed_everything, untouched_random_state

# pytest omits these functions from the traceback that it shows
__tracebackhide__ = True

# prefix of the keys of params.yaml that are arguments here, as messages write it
SECTION = re.compile(r"(?<!')\btrain\.")
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


def plain(value: Any) -> Any:
    """Convert a NumPy number to a Python number; return other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def as_config(
    factory: Callable[[], nn.Module],
    batches: Iterable[Any],
    sync: str | type[Strategy],
    tuning: Tuning,
    accept: Collection[str],
    **settings: Any,
) -> RunConfig:
    """Convert arguments of ``check_data_parallel`` to a RunConfig. ``settings``: the
    fields of :class:`Settings` without ``logical_shards``. Raises UserError if invalid.
    """
    known = isinstance(accept, Collection) and all(v in VERDICTS for v in accept)
    if not known or not accept:
        allowed = ", ".join(VERDICTS)
        raise UserError(f"accept = {accept!r}: must hold some of {allowed}")
    if not all(hasattr(tuning, field.name) for field in fields(Defaults)):
        kind = type(tuning).__name__
        raise UserError(f"tuning: is a {kind}, must be a minitrain.sync.Defaults")
    shards = plain(tuning.logical_shards)
    given = validated({**settings, "logical_shards": shards}, Settings)
    if isinstance(sync, str):
        sync = find_strategy(sync)
    elif not (isinstance(sync, type) and issubclass(sync, Strategy)):
        raise UserError(
            f"sync = {sync!r}: must be a name, or a class that derives from "
            "minitrain.sync.Strategy"
        )
    kept = _batches(batches, given.steps)
    count = _number(given.count or count_targets)
    return RunConfig(
        factory=factory,
        data=InMemory(kept, given.loss or causal_lm_loss, count),
        sync=sync,
        tuning=tuning,
        steps=given.steps or max(2, len(kept)),
        optimizer=given.optimizer,
        learning_rate=given.learning_rate,
        precision=given.precision,
        grad_accumulation_steps=given.grad_accumulation_steps,
        seed=given.seed,
    )


def _batches(batches: Iterable[Any], steps: int | None) -> Sequence[Any]:
    unfit = isinstance(batches, str | bytes | Mapping | nn.Module)
    if unfit or not (isinstance(batches, Iterable) or hasattr(batches, "__getitem__")):
        kind = type(batches).__name__
        raise UserError(f"batches: is a {kind}, must be an iterable of global batches")
    if not isinstance(batches, Sequence):
        # a loader may shuffle, but ranks and replay need the same batches
        with untouched_random_state():
            try:
                batches = list(islice(iter(batches), steps))
            except (Exception, SystemExit) as error:
                raise UserError(f"batches: {described(error)}") from error
    if not batches:
        raise UserError("batches: is empty, must hold a global batch or more")
    return batches


def _number(count: Callable[[Any], Any]) -> Callable[[Any], int]:
    def number(batch: Any) -> int:
        try:
            found = count(batch)
        except (Exception, SystemExit) as error:
            raise UserError(f"count(batch): {described(error)}") from error
        try:
            # a count may be a tensor
            whole = int(found)
        except (TypeError, ValueError, RuntimeError):
            whole = -1
        if whole < 0 or whole != found:
            shown = " ".join(repr(found).split())[:60]
            raise UserError(f"count(batch) = {shown}: must be a whole number")
        return whole

    return number


def refuse_what_cannot_be(config: RunConfig, world_size: int) -> None:
    """Raise UserError if settings, batches, model or loss of ``config`` do not fit
    ``world_size`` ranks. To find out, it also runs the model in this process.
    """
    config.sync.guarantees.require(config.tuning, world_size, config.precision)
    shards = config.num_shards(world_size)
    parts = shards * config.grad_accumulation_steps
    data = in_memory_of(config)
    for index, batch in enumerate(data.batches):
        if data.loss is causal_lm_loss and not isinstance(batch, Mapping):
            raise UserError(
                f"loss: is not given, and batches[{index}] is a "
                f"{type(batch).__name__}: must be a mapping for model(**batch).loss, "
                "or give a loss (--loss)"
            )
        _refuse_batch(f"batches[{index}]", batch, parts)
    _refuse_counts(config, data, shards)
    _refuse_model(config, world_size)


def _refuse_batch(name: str, batch: Any, parts: int) -> None:
    lengths = {len(t) if t.dim() else 0 for t in tensors_of(batch)}
    for where, value in _uncut(batch):
        if len(value) in lengths or (isinstance(value, np.ndarray) and not lengths):
            raise UserError(
                f"{name}{where}: is a {type(value).__name__} of {len(value)}, which "
                "would not be cut; make it a tensor, or give it to the loss otherwise"
            )
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no tensor"
        raise UserError(f"{name}: all tensors must have one length, found {found}")
    if min(lengths) < parts:
        raise UserError(
            f"{name}: {min(lengths)} samples cannot be cut into {parts} parts "
            "(world_size or logical_shards, times grad_accumulation_steps)"
        )


def _uncut(batch: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    # yield arrays and lists that ``cut``, which slices tensors, would not split
    is_list = isinstance(batch, Sequence) and not isinstance(batch, str | bytes)
    if isinstance(batch, np.ndarray) and batch.ndim:
        yield where, batch
    elif isinstance(batch, Mapping) or is_list:
        named = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        for key, value in named:
            yield from _uncut(value, f"{where}[{key!r}]")
    if is_list and not tensors_of(batch):
        yield where, batch


def _refuse_counts(config: RunConfig, data: InMemory, shards: int) -> None:
    every = config.batches(range(shards), shards)
    for step, batch in zip(range(config.steps), data.batches, strict=False):
        parts, whole = every.micro_batches(step), data.count(batch)
        counted = [part.num_targets for part in parts]
        if sum(counted) != whole:
            raise UserError(
                f"count(batches[{step}]) = {whole}: must be the sum of its parts' "
                f"counts, {' + '.join(map(str, counted))}"
            )
        if 0 in counted:
            # the mean over no target is NaN, and so is its product with a weight of 0
            raise UserError(
                f"batches[{step}]: the part of shard {parts[counted.index(0)].shard} "
                f"(of {shards}) has no target (by default, count(batch) counts "
                "labels[:, 1:] other than -100)"
            )


@alone()
def _refuse_model(config: RunConfig, world_size: int) -> None:
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
            without += "; for other models give batches and loss (--batches, --loss)"
            raise UserError(f"{error}; {without}") from None
        if own_loss is not None and issubclass(config.sync, StockDDP):
            computed_loss(Wrapped(first), part, own_loss)
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
    _refuse_whole_batch(config, second, own_loss)


def _refuse_whole_batch(
    config: RunConfig, model: nn.Module, loss: Callable[..., Any] | None
) -> None:
    # a loss may fit the number of samples of a rank only
    (whole,) = whole_batches(config).batches([0], 1).micro_batches(0)
    try:
        with Precision(config.precision).autocast():
            computed_loss(model, whole, loss)
    except UserError as error:
        raise UserError(
            f"the loss fails on a whole batch of {len(whole.digests)}, which one "
            f"process computes: {error}"
        ) from None


def _made(config: RunConfig) -> nn.Module:
    if isinstance(config.factory, nn.Module):
        kind = type(config.factory).__name__
        raise UserError(f"factory: is a {kind}, must be a function that makes one")
    seed_everything(config.seed)
    return make_model(config.factory, "factory")
