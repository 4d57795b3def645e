"""Arguments of ``check_data_parallel``: a run, or one line on what is wrong."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import nn

from minitrain.analysis.verdicts import VERDICTS
from minitrain.check.preflight import refuse_model
from minitrain.check.trial import in_memory_of
from minitrain.core.errors import UserError, lines_of
from minitrain.core.schema import Count, PositiveFloat, Section, Seed, validated
from minitrain.data.batches import causal_lm_loss
from minitrain.data.cut import InMemory, count_targets, tensors_of
from minitrain.sync.catalog import find_strategy
from minitrain.sync.guarantees import Defaults, Tuning
from minitrain.sync.strategy import Strategy
from minitrain.train.config import OptimizerName, RunConfig
from minitrain.train.precision import Name
from minitrain.train.rng import untouched_random_state

# pytest leaves these functions out: between the call and the message nothing is told
__tracebackhide__ = True

# the section of params.yaml that has what is an argument here
SECTION = re.compile(r"(?<!')\btrain\.")
TwoOrMore = Annotated[int, Field(ge=2)]


class Settings(Section):
    """Arguments with limits that do not depend on the model."""

    world_size: TwoOrMore
    steps: TwoOrMore | None
    grad_accumulation_steps: Count
    precision: Name
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
    """Return ``error`` in the words of a call, and as if it were raised anew."""
    if isinstance(error, UserError):
        error.args = tuple(SECTION.sub("", line) for line in lines_of(error))
    return error.with_traceback(None)


def plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python, and other values as they are."""
    return value.item() if isinstance(value, np.generic) else value


def as_config(
    factory: Callable[[], nn.Module],
    batches: Iterable[Any],
    sync: str | type[Strategy],
    tuning: Tuning,
    accept: Collection[str],
    **settings: Any,
) -> RunConfig:
    """Return the run that the arguments describe; UserError where there is none."""
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
        steps=given.steps or len(kept),
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
        # a loader may shuffle: the ranks and their replay need the same batches
        with untouched_random_state():
            batches = list(islice(iter(batches), steps))
    if not batches:
        raise UserError("batches: is empty, must hold a global batch or more")
    return batches


def _number(count: Callable[[Any], Any]) -> Callable[[Any], int]:
    def number(batch: Any) -> int:
        found = count(batch)
        try:
            # many a count is a tensor
            whole = int(found)
        except (TypeError, ValueError, RuntimeError):
            whole = -1
        if whole < 0 or whole != found:
            shown = " ".join(repr(found).split())[:60]
            raise UserError(f"count(batch) = {shown}: must be a whole number")
        return whole

    return number


def refuse_what_cannot_be(config: RunConfig, world_size: int) -> None:
    """Raise UserError for settings, batches, a model or a loss that do not fit."""
    config.sync.guarantees.require(config.tuning, world_size, config.precision)
    shards = config.num_shards(world_size)
    parts = shards * config.grad_accumulation_steps
    data = in_memory_of(config)
    for index, batch in enumerate(data.batches):
        if data.loss is causal_lm_loss and not isinstance(batch, Mapping):
            raise UserError(
                f"loss: is not given, and batches[{index}] is a "
                f"{type(batch).__name__}: must be a mapping for model(**batch).loss"
            )
        _refuse_batch(f"batches[{index}]", batch, parts)
    _refuse_counts(config, data, shards)
    refuse_model(config, world_size)


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
    # sequences that ``cut`` hands on as they are
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
            # the mean over no target is no number, and no weight makes it one
            raise UserError(
                f"batches[{step}]: the part of shard {parts[counted.index(0)].shard} "
                f"(of {shards}) has no target"
            )
