"""The ladder: the results of all checks of a run (rungs), by name.

:func:`own_rungs` needs only a run and its replay; :func:`ladder` adds the comparison
with other runs. The pipeline calls them in two stages.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from minitrain.analysis.rungs import (
    FINE,
    CheckVerdict,
    Reason,
    Rung,
    not_run,
    rung_of,
    without_bits,
)
from minitrain.proof.bits import (
    bits_rung,
    data_rung,
    hashes_rung,
    losses_rung,
    precision_rung,
    ranks_rung,
    reduced_once_rung,
    trained_rung,
    unwatched_rung,
)
from minitrain.proof.evidence import IN_ORDER, Evidence, Tensors, hashes_of, of_kind
from minitrain.proof.forward import forward_of
from minitrain.proof.replay import reduction_of
from minitrain.proof.tolerances import COMPARABLE, Twin, one_process_rungs
from minitrain.sync.catalog import name_of
from minitrain.sync.guarantees import Promise
from minitrain.sync.strategy import Strategy
from minitrain.train.config import RunConfig

Rungs = dict[str, Rung]
# rungs that depend on a promise of the strategy, and the reason to skip them
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
# bucket sizes for the reference, besides the run's: odd ones give unequal ring chunks
TEST_BUCKET_SIZES = (1, 7, 1000)
# largest number of elements, which bounds the memory for many shards of a large model
MAX_ELEMENTS = 1 << 20
NOT_A_MEAN_OVER_SAMPLES = (
    "the loss is not a mean over samples, so ranks that see fewer of them (negatives, "
    "terms of a sum) compute a different one than one process"
)


def own_rungs(
    config: RunConfig,
    run: Evidence,
    replay: Evidence | None,
    witness: Mapping[str, Mapping[str, Any]],
) -> Rungs:
    """Return the rungs (check results) that need only ``run`` and its ``replay``, by
    name. ``witness``: the witness's results, as dictionaries. On a GPU, whose kernels
    sum in an unknown order, ``replay`` is None: there is only a rung ``replay``, not
    run. Rungs that the strategy does not promise are not run.
    """
    testimony = {name: rung_of(rung) for name, rung in witness.items()}
    rungs = {
        "trained": trained_rung(run.rows),
        "reduced_once": reduced_once_rung(run.rows),
        "witness_data": testimony.pop("witness_data"),
    }
    if "replay" in config.sync.guarantees.promises:
        count = config.num_shards(len(run.states))
        types = (t.dtype for t in run.state.values() if t.is_floating_point())
        sizes, dtype = _bucket_sizes(run), next(types, torch.float32)
        rungs["reference"] = reference_rung(config.sync, count, sizes, dtype)
    rungs["unwatched"] = unwatched_rung(run.rows)
    shared = config.sync.guarantees.shares_parameters and len(run.states) > 1
    states = _unshared(run) if shared else run.states
    nothing = shared and not any(states)
    rungs["ranks"] = not_run(Reason.ONE_MEMORY) if nothing else ranks_rung(states)
    if replay is None:
        rungs["replay"] = not_run("a replay cannot run on the device of this run")
    else:
        rungs["data"] = data_rung(run.rows, replay.rows)
        if config.precision == "fp16":
            rungs["precision"] = precision_rung(run.rows, replay.rows)
        for what in IN_ORDER:
            given = run.rows, replay.rows, what, len(run.states)
            rungs[f"replay_{what}"] = hashes_rung(*given)
        rungs["replay_losses"] = losses_rung(run.losses, replay.losses)
        rungs["replay"] = bits_rung(run.state, replay.state)
    rungs |= testimony
    return rungs | _not_promised(rungs, config)


def _unshared(run: Evidence) -> list[Tensors]:
    # one memory holds the parameters, but each rank has buffers of its own
    names = {n for row in hashes_of(run.rows).values() for n in row["buffers"]}
    return [{n: t for n, t in state.items() if n in names} for state in run.states]


def ladder(
    own: Mapping[str, Rung],
    config: RunConfig,
    run: Evidence,
    one: Evidence | Reason | str,
    twin: Twin,
    atol: float,
) -> Rungs:
    """Return all rungs (check results) of ``run`` by name: ``own`` from
    :func:`own_rungs`, and the comparison with ``one`` (the reference run of one
    process, or the reason why there is none). ``twin`` and ``atol`` are as in
    :func:`minitrain.proof.tolerances.one_process_rungs`.
    """
    if isinstance(one, str):
        names = ("one_process", "one_process_data", *COMPARABLE[:2])
        beside = dict.fromkeys(names, not_run(one))
    else:
        beside = one_process_rungs(run, one, config, atol, twin)
        if "loss" not in config.sync.guarantees.promises:
            # the strategy promises more than its loss
            del beside["loss"]
        beside |= _not_promised(beside, config)
    rungs = {**own, **beside}
    return rungs | _not_comparable(rungs, run, config)


def _not_promised(rungs: Rungs, config: RunConfig) -> Rungs:
    skipped: Rungs = {}
    for promise, (names, why) in PROMISED.items():
        if promise not in config.sync.guarantees.promises:
            why = f"{name_of(config.sync)} {why}"
        elif promise == "one_process" and config.precision != "float32":
            why = f"{config.precision} rounds more coarsely than the tolerances allow"
        else:
            continue
        skipped |= {name: not_run(why) for name in names if name in rungs}
    return skipped


def _not_comparable(rungs: Rungs, run: Evidence, config: RunConfig) -> Rungs:
    # the witness found that the loss of a sample depends on the rest of its batch, so a
    # whole batch differs from its shards by design. A buffer that counts samples in
    # training is not such a design
    mean, probe = rungs.get("witness_mean"), rungs.get("witness_probe")
    if mean is None or not mean.is_unexplained:
        return {}
    if probe and probe.verdict in FINE and forward_of(run.rows, config).changed:
        return {}
    return dict.fromkeys(
        COMPARABLE, not_run(f"{NOT_A_MEAN_OVER_SAMPLES}; {mean.detail}")
    )


def _bucket_sizes(run: Evidence) -> set[int]:
    sizes = {name: tensor.numel() for name, tensor in run.state.items()}
    rows = of_kind(run.rows, "buckets")
    buckets = [bucket["parameters"] for row in rows for bucket in row["buckets"]]
    return {sum(sizes.get(name, 0) for name in names) for names in buckets} - {0}


def reference_rung(
    strategy: type[Strategy], num_shards: int, sizes: Iterable[int], dtype: torch.dtype
) -> Rung:
    """Return the rung of ``strategy.reference``, the sum that a replay uses: of random
    gradients it must be the float64 sum, up to rounding, for buckets of ``sizes``
    elements; if placement changes bits, on one to three hosts and one rank per host. A
    replay misses a rank that both leave out.

    Adding n numbers rounds at most n times, each time by at most half a unit in the
    last place of the sum of absolute values so far (Higham, Accuracy and Stability of
    Numerical Algorithms, chapter 4); twice that is allowed.
    """
    chance = torch.Generator().manual_seed(0)
    wire = strategy.guarantees.wire
    coarse = getattr(torch, wire) if wire else dtype
    unit, smallest = torch.finfo(coarse).eps, torch.finfo(coarse).smallest_normal
    ranks, worst, where = range(num_shards), 0.0, ""
    counts = {1, 2, 3, num_shards} if strategy.guarantees.adds_in == "hosts" else {1}
    for size in sorted(
        {*TEST_BUCKET_SIZES, *(min(size, MAX_ELEMENTS) for size in sizes)}
    ):
        drawn = (torch.randn(size, generator=chance) for _ in range(num_shards))
        shards = [one.to(dtype) for one in drawn]
        right = torch.stack(shards).double()
        allowed = (num_shards + 1) * (unit * right.abs().sum(0) + smallest)
        for count in sorted(count for count in counts if count <= num_shards):
            hosts = [[*ranks[first::count]] for first in range(count)]
            found = reduction_of(strategy, hosts)([shard.clone() for shard in shards])
            share = float(((found.double() - right.sum(0)).abs() / allowed).max())
            if not share <= worst:
                worst, where = share, f"{num_shards} shards of {size} elements"
                where += f" on {count} hosts" if count > 1 else ""
    if not worst <= 1:
        detail = f"the reference is not a sum: {where}: "
        detail += f"{worst:.3g} times what rounding explains"
        return without_bits(CheckVerdict.BREACH, detail)
    detail = f"at most {worst:.2g} of the rounding limit"
    return without_bits(CheckVerdict.WITHIN, detail)
