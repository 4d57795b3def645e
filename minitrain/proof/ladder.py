"""The ladder: which rungs a run is held to, from what it and its replay left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitrain.proof.bits import (
    Rows,
    Rung,
    Tensors,
    bits_rung,
    data_rung,
    losses_rung,
    not_run,
    precision_rung,
    ranks_rung,
    reduced_once_rung,
    replay_rungs,
    trained_rung,
    unwatched_rung,
)
from minitrain.proof.reference import reference_rung
from minitrain.sync.strategy import Strategy


@dataclass(frozen=True)
class Ran:
    """What a run, or its replay, left: rows of hashes, the loss of every step, and the
    final state of every rank.
    """

    rows: Rows
    losses: Sequence[float]
    states: Sequence[Tensors]


def ladder(
    run: Ran,
    replay: Ran | None,
    strategy: type[Strategy],
    num_shards: int,
    precision: str,
    witness: Mapping[str, Mapping[str, Any]],
) -> dict[str, Rung]:
    """Every rung of ``run`` by name, in the order in which causes come before effects.

    Without a ``replay`` (a GPU, whose kernels add in an order of their own) its rungs
    are not run. ``witness`` are the rungs of :mod:`minitrain.proof.witness`. Rungs that
    the strategy does not promise are among them.
    """
    testimony = {name: Rung(**rung) for name, rung in witness.items()}
    rungs = {
        "trained": trained_rung(run.rows),
        "reduced_once": reduced_once_rung(run.rows),
        "witness_data": testimony.pop("witness_data"),
    }
    if "replay" in strategy.promises:
        rungs["reference"] = reference_rung(
            strategy, num_shards, bucket_sizes(run), dtype_of(run.states[0])
        )
    rungs["unwatched"] = unwatched_rung(run.rows)
    rungs["ranks"] = ranks_rung(run.states)
    if replay is None:
        rungs["replay"] = not_run("computed on another device than a replay could be")
    else:
        rungs["data"] = data_rung(run.rows, replay.rows)
        if precision == "fp16":
            rungs["precision"] = precision_rung(run.rows, replay.rows, precision)
        rungs |= replay_rungs(run.rows, replay.rows, len(run.states))
        rungs["replay_losses"] = losses_rung(run.losses, replay.losses)
        rungs["replay"] = bits_rung(run.states[0], replay.states[0])
    return rungs | testimony


def bucket_sizes(run: Ran) -> set[int]:
    """Elements in the buckets that the run reduced."""
    state = run.states[0]
    return {
        sum(state[name].numel() for name in bucket["parameters"] if name in state)
        for row in run.rows
        if row["kind"] == "buckets"
        for bucket in row["buckets"]
    } - {0}


def dtype_of(state: Mapping[str, Tensor]) -> torch.dtype:
    """The type of the first floating-point tensor."""
    types = (t.dtype for t in state.values() if t.is_floating_point())
    return next(types, torch.float32)
