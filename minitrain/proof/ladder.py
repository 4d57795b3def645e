"""The ladder: every rung that a run is held to, from what it and others left.

Two steps, because a pipeline collects the evidence on each run before it compares runs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minitrain.analysis.verdicts import FINE
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
from minitrain.proof.forward import forward_of
from minitrain.proof.reference import reference_rung
from minitrain.proof.tolerances import Twin, one_process_rungs
from minitrain.sync.catalog import name_of
from minitrain.sync.guarantees import Promise
from minitrain.train.config import RunConfig

Rungs = dict[str, Rung]
COMPARABLE = ("one_process", "one_process_gradients", "one_process_early")
# the rungs that a strategy is held to where it promises so, and why not otherwise
PROMISED: dict[Promise, tuple[tuple[str, ...], str]] = {
    "reduced_once": (
        ("reduced_once",),
        "does not promise that each parameter is reduced once",
    ),
    "replay": (
        ("replay", "replay_losses", *(f"replay_{what}" for what in IN_ORDER)),
        "does not promise the bits of a replay",
    ),
    "one_process": (COMPARABLE, "does not promise to stay close to one process"),
}
FEWER = (
    "the loss is no mean over samples, so ranks that see fewer of them (negatives, "
    "terms of a sum) compute another one than one process"
)


def own_rungs(
    config: RunConfig,
    run: Evidence,
    replay: Evidence | None,
    witness: Mapping[str, Mapping[str, Any]],
) -> Rungs:
    """The rungs of ``run`` by name, in the order in which causes come before effects.

    Without a ``replay`` (a GPU, whose kernels add in an order of their own) its rungs
    are not run, nor is what the strategy does not promise.
    """
    testimony = {name: Rung(**rung) for name, rung in witness.items()}
    rungs = {
        "trained": trained_rung(run.rows),
        "reduced_once": reduced_once_rung(run.rows),
        "witness_data": testimony.pop("witness_data"),
    }
    if "replay" in config.sync.guarantees.promises:
        count = config.num_shards(len(run.states))
        given = count, _bucket_sizes(run), _dtype_of(run.state)
        rungs["reference"] = reference_rung(config.sync, *given)
    rungs["unwatched"] = unwatched_rung(run.rows)
    rungs["ranks"] = ranks_rung(run.states)
    if replay is None:
        rungs["replay"] = not_run("computed on another device than a replay could be")
    else:
        rungs |= _against_replay(run, replay, config.precision)
    rungs |= testimony
    return rungs | _not_promised(rungs, config)


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
    """All rungs of ``run``: its ``own``, those against ``one`` process (or the reason
    why there is none), and ``more``. ``twin`` is asked only for what is beyond the
    quick limits; ``atol`` is one of them.
    """
    if isinstance(one, str):
        names = ("one_process", "one_process_data", *COMPARABLE[1:])
        beside = dict.fromkeys(names, not_run(one))
    else:
        beside = one_process_rungs(run, one, config, atol, twin)
        if "loss" not in config.sync.guarantees.promises:
            # held to more than its loss
            del beside["loss"]
        beside |= _not_promised(beside, config)
    rungs = {**own, **beside, **(more or {})}
    return rungs | _not_comparable(rungs, run, config)


def _not_promised(rungs: Rungs, config: RunConfig) -> Rungs:
    skipped: Rungs = {}
    for promise, (names, why) in PROMISED.items():
        if promise not in config.sync.guarantees.promises:
            why = f"{name_of(config.sync)} {why}"
        elif promise == "one_process" and config.precision != "float32":
            why = f"{config.precision} rounds more coarsely than the tolerances know"
        else:
            continue
        skipped |= {name: not_run(why) for name in names if name in rungs}
    return skipped


def _not_comparable(rungs: Rungs, run: Evidence, config: RunConfig) -> Rungs:
    # the witness finds that the loss of a sample depends on the others of its batch:
    # there a whole batch is another thing than its shards by design. A buffer that
    # counts samples in training is no such design
    mean, probe = rungs.get("witness_mean"), rungs.get("witness_probe")
    # without a distance nothing was compared, and nothing is known
    if mean is None or mean.verdict != "not run" or mean.max_abs_diff is None:
        return {}
    if probe and probe.verdict in FINE and forward_of(run.rows, config).changed:
        return {}
    return dict.fromkeys(COMPARABLE, not_run(f"{FEWER}; {mean.detail}"))


def _bucket_sizes(run: Evidence) -> set[int]:
    return {
        sum(
            run.state[name].numel()
            for name in bucket["parameters"]
            if name in run.state
        )
        for row in of_kind(run.rows, "buckets")
        for bucket in row["buckets"]
    } - {0}


def _dtype_of(state: Mapping[str, Tensor]) -> torch.dtype:
    types = (t.dtype for t in state.values() if t.is_floating_point())
    return next(types, torch.float32)
