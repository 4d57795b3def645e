"""What ``check_data_parallel`` is given: as a run, or refused in one line."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor, nn

from minitrain.analysis.verdicts import VERDICTS
from minitrain.check.preflight import refuse_model
from minitrain.check.trial import in_memory_of
from minitrain.core.errors import UserError
from minitrain.data.batches import causal_lm_loss
from minitrain.data.cut import InMemory, count_targets, tensors_of
from minitrain.sync.catalog import find_strategy
from minitrain.sync.guarantees import Defaults
from minitrain.sync.strategy import Strategy
from minitrain.train.config import OPTIMIZERS, RunConfig
from minitrain.train.precision import PRECISIONS
from minitrain.train.rng import untouched_random_state

# pytest leaves these functions out: between the call and the message nothing is told
__tracebackhide__ = True

# where the caller wrote what params.yaml has in its section ``train``
KEYS = {field.name: f"tuning.{field.name}" for field in fields(Defaults)} | {
    key: key for key in ("sync", "precision", "learning_rate")
}
KEY = re.compile(rf"(?<!')\btrain\.({'|'.join(KEYS)})\b")
WORDS = {"true": "True", "false": "False", "null": "None"}
WORD = re.compile(rf"(= |be |to )({'|'.join(WORDS)})\b")


def by_argument(error: Exception) -> Exception:
    """``error`` in the words of a call, and as if it were raised anew."""
    if isinstance(error, UserError):
        line = KEY.sub(lambda found: KEYS[found[1]], str(error))
        error.args = (WORD.sub(lambda found: found[1] + WORDS[found[2]], line),)
    return error.with_traceback(None)


def as_config(
    factory: Callable[[], nn.Module],
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor] | None,
    count: Callable[[Any], Any] | None,
    sync: str | type[Strategy],
    steps: int | None,
    **settings: Any,
) -> RunConfig:
    """A run of what the caller gave; UserError where it can be none."""
    if steps is not None:
        _refuse_integer("steps", steps, 2)
    for name, value in {"loss": loss, "count": count}.items():
        if value is not None and not callable(value):
            raise UserError(f"{name} = {value!r}: must be a function")
    if isinstance(sync, str):
        sync = find_strategy(sync)
    elif not (isinstance(sync, type) and issubclass(sync, Strategy)):
        raise UserError(
            f"sync = {sync!r}: must be a name, or a class that derives from "
            "minitrain.sync.Strategy"
        )
    given = _batches(batches, steps)
    if not all(hasattr(settings["tuning"], field.name) for field in fields(Defaults)):
        kind = type(settings["tuning"]).__name__
        raise UserError(f"tuning: is a {kind}, must be a minitrain.sync.Defaults")
    return RunConfig(
        factory=factory,
        data=InMemory(given, loss or causal_lm_loss, _number(count or count_targets)),
        sync=sync,
        steps=len(given) if steps is None else steps,
        **settings,
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


def refuse_unknown(accept: Collection[str]) -> None:
    """Raise UserError unless ``accept`` holds verdicts and nothing else."""
    wrong = isinstance(accept, str) or not isinstance(accept, Collection)
    if wrong or not accept or not {*accept} <= {*VERDICTS}:
        allowed = ", ".join(VERDICTS)
        raise UserError(f"accept = {accept!r}: must hold some of {allowed}")


def refuse_what_cannot_be(
    config: RunConfig, world_size: int, timeout_s: float, atol: float
) -> None:
    """Raise UserError for numbers, batches, a model or a loss that cannot be."""
    _refuse_settings(config, world_size)
    for name, number in {
        "learning_rate": config.learning_rate,
        "timeout_s": timeout_s,
        "atol": atol,
    }.items():
        real = isinstance(number, Real) and math.isfinite(number)
        if not real or number < 0 or (name != "atol" and not number):
            allowed = "0 or more" if name == "atol" else "a positive number"
            raise UserError(f"{name} = {number!r}: must be {allowed}")
    parts = config.num_shards(world_size) * config.grad_accumulation_steps
    data = in_memory_of(config)
    for index, batch in enumerate(data.batches):
        if data.loss is causal_lm_loss and not isinstance(batch, Mapping):
            raise UserError(
                f"loss: is not given, and batches[{index}] is a "
                f"{type(batch).__name__}: must be a mapping for model(**batch).loss"
            )
        _refuse_batch(f"batches[{index}]", batch, parts)
    _refuse_counts(config, data, config.num_shards(world_size))
    refuse_model(config, world_size)


def _refuse_settings(config: RunConfig, world_size: int) -> None:
    for name, names in {"optimizer": OPTIMIZERS, "precision": PRECISIONS}.items():
        value = getattr(config, name)
        if value not in names:
            allowed = ", ".join(names)
            raise UserError(f"{name} = {value!r}: must be one of {allowed}")
    for name, integer, least in (
        ("world_size", world_size, 2),
        ("grad_accumulation_steps", config.grad_accumulation_steps, 1),
        ("tuning.logical_shards", config.tuning.logical_shards, 1),
        ("steps", config.steps, 2),
        ("seed", config.seed, 0),
    ):
        _refuse_integer(name, integer, least)
    config.sync.guarantees.require(config.tuning, world_size, config.precision)


def _refuse_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral):
        raise UserError(f"{name} = {value!r}: must be an integer")
    if int(value) < least:
        raise UserError(f"{name} = {value}: must be at least {least}")


def _refuse_batch(name: str, batch: Any, parts: int) -> None:
    lengths = {len(t) if t.dim() else 0 for t in tensors_of(batch)}
    for where, value in _uncut(batch):
        is_array = isinstance(value, np.ndarray) and value.ndim > 0
        size = len(value) if is_array or isinstance(value, Sequence) else None
        if size in lengths or (is_array and not lengths):
            raise UserError(
                f"{name}{where}: is a {type(value).__name__} of {size}, which "
                "would not be cut; make it a tensor, or give it to the loss otherwise"
            )
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no tensor"
        raise UserError(f"{name}: all tensors must have one length, found {found}")
    if min(lengths) < parts:
        raise UserError(
            f"{name}: {min(lengths)} samples cannot be cut into {parts} "
            "parts (processes or logical shards, times grad_accumulation_steps)"
        )


def _uncut(batch: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    # what ``cut`` hands on as it is: lists without a tensor as a whole too
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _uncut(value, f"{where}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from _uncut(value, f"{where}[{index}]")
        if not tensors_of(batch):
            yield where, batch
    elif not isinstance(batch, Tensor | str | bytes):
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
