"""The ladder: every rung that a run is held to, from what it and others left.

Two steps, because a pipeline collects the evidence on each run before it compares runs:
:func:`own_rungs` of a run, its replay and the witness, then :func:`ladder` with one
process beside it. Who asks (the stages, ``check_data_parallel``) only loads and saves.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minitrain.proof.bits import (
    Rung,
    bits_rung,
    data_rung,
    hashes_rung,
    losses_rung,
    not_run,
    precision_rung,
    ranks_rung,
    reduced_once_rung,
    trained_rung,
    unwatched_rung,
)
from minitrain.proof.evidence import Evidence
from minitrain.proof.first_difference import IN_ORDER, of_kind
from minitrain.proof.promises import not_comparable, not_promised
from minitrain.proof.reference import reference_rung
from minitrain.proof.tolerances import Twin, one_process_rungs
from minitrain.train.config import RunConfig

Rungs = dict[str, Rung]
ONE_PROCESS = (
    "one_process",
    "one_process_data",
    "one_process_gradients",
    "one_process_early",
)


def own_rungs(
    config: RunConfig,
    run: Evidence,
    replay: Evidence | None,
    witness: Mapping[str, Mapping[str, Any]],
) -> Rungs:
    """The rungs of ``run`` by name, in the order in which causes come before effects.

    Without a ``replay`` (a GPU, whose kernels add in an order of their own) its rungs
    are not run. ``witness`` are the rungs of :mod:`minitrain.proof.witness`. What the
    strategy does not promise is not run, and says so.
    """
    testimony = {name: Rung(**rung) for name, rung in witness.items()}
    rungs = {
        "trained": trained_rung(run.rows),
        "reduced_once": reduced_once_rung(run.rows),
        "witness_data": testimony.pop("witness_data"),
    }
    if "replay" in config.sync.guarantees.promises:
        count = config.num_shards(len(run.states))
        dtype = dtype_of(run.state)
        rungs["reference"] = reference_rung(
            config.sync, count, bucket_sizes(run), dtype
        )
    rungs["unwatched"] = unwatched_rung(run.rows)
    rungs["ranks"] = ranks_rung(run.states)
    if replay is None:
        rungs["replay"] = not_run("computed on another device than a replay could be")
    else:
        rungs |= _against_replay(run, replay, config.precision)
    rungs |= testimony
    return rungs | not_promised(rungs, config)


def _against_replay(run: Evidence, replay: Evidence, precision: str) -> Rungs:
    rungs = {"data": data_rung(run.rows, replay.rows)}
    if precision == "fp16":
        rungs["precision"] = precision_rung(run.rows, replay.rows)
    for what in IN_ORDER:
        found = hashes_rung(run.rows, replay.rows, what, len(run.states))
        rungs[f"replay_{what}"] = found
    rungs["replay_losses"] = losses_rung(run.losses, replay.losses)
    rungs["replay"] = bits_rung(run.state, replay.state)
    return rungs


def ladder(
    own: Mapping[str, Rung],
    config: RunConfig,
    run: Evidence,
    one: Evidence | str,
    twin: Twin,
    atol: float,
    more: Mapping[str, Rung] | None = None,
) -> Rungs:
    """All rungs of ``run``: its ``own``, those against ``one`` process, and ``more``.

    ``one`` is the reason where there is none: the run is that process itself, or has
    nothing that could be compared. ``twin`` is asked only for what is beyond the quick
    limits; ``atol`` is one of them.
    """
    if isinstance(one, str):
        beside = dict.fromkeys(ONE_PROCESS, not_run(one))
    else:
        beside = one_process_rungs(run, one, config, atol, twin)
        if "loss" not in config.sync.guarantees.promises:
            # held to more than its loss
            del beside["loss"]
        beside |= not_promised(beside, config)
    rungs = {**own, **beside, **(more or {})}
    return rungs | not_comparable(rungs, run.rows, config)


def bucket_sizes(run: Evidence) -> set[int]:
    """Elements in the buckets that the run reduced."""
    state = run.state
    return {
        sum(state[name].numel() for name in bucket["parameters"] if name in state)
        for row in of_kind(run.rows, "buckets")
        for bucket in row["buckets"]
    } - {0}


def dtype_of(state: Mapping[str, Tensor]) -> torch.dtype:
    """The type of the first floating-point tensor."""
    types = (t.dtype for t in state.values() if t.is_floating_point())
    return next(types, torch.float32)
