"""The ladder: every rung that a run is held to, from what it and others left.

Two steps, because a pipeline collects the evidence on each run before it compares runs.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from minitrain.analysis.verdicts import FINE, CheckVerdict
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
    rung_of,
    trained_rung,
    unwatched_rung,
)
from minitrain.proof.evidence import Evidence
from minitrain.proof.first_difference import IN_ORDER, of_kind
from minitrain.proof.forward import forward_of
from minitrain.proof.replay import Hosts, reduction_of
from minitrain.proof.tolerances import COMPARABLE, Twin, one_process_rungs
from minitrain.sync.catalog import name_of
from minitrain.sync.guarantees import Promise
from minitrain.sync.strategy import Strategy
from minitrain.train.config import RunConfig

Rungs = dict[str, Rung]
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
# of the reference; odd ones beside those of the run: chunks of a ring come out unequal
SIZES = (1, 7, 1000)
# elements, for the memory that many shards of a large model would take
MOST = 1 << 20
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
    """Collect the rungs of ``run`` by name, in the order in which causes come before
    effects. Without a ``replay`` (a GPU, whose kernels add in an order of their own)
    its rungs are not run, nor is what the strategy does not promise.
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
        given = count, _bucket_sizes(run), next(types, torch.float32)
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
        given = run.rows, replay.rows, what, len(run.states)
        rungs[f"replay_{what}"] = hashes_rung(*given)
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
    """Collect all rungs of ``run``: its ``own``, those against ``one`` process (or the
    reason why there is none), and ``more``. ``twin`` is asked only for what is beyond
    the quick limits; ``atol`` is one of them.
    """
    if isinstance(one, str):
        names = ("one_process", "one_process_data", *COMPARABLE[:2])
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
    sizes = {name: tensor.numel() for name, tensor in run.state.items()}
    rows = of_kind(run.rows, "buckets")
    buckets = [bucket["parameters"] for row in rows for bucket in row["buckets"]]
    return {sum(sizes.get(name, 0) for name in names) for names in buckets} - {0}


def reference_rung(
    strategy: type[Strategy], num_shards: int, sizes: Iterable[int], dtype: torch.dtype
) -> Rung:
    """Compare the reference of a strategy, which a replay repeats, with a float64 sum
    of random gradients, for buckets of ``sizes`` elements, and several ways to put
    ranks on hosts. A reference and a strategy that forget the same rank agree.

    Adding n numbers rounds at most n times, each time by at most half a unit in the
    last place of the sum of absolute values so far (Higham, Accuracy and Stability of
    Numerical Algorithms, chapter 4); twice that is allowed.
    """
    chance = torch.Generator().manual_seed(0)
    wire = strategy.guarantees.wire
    coarse = getattr(torch, wire) if wire else dtype
    unit, smallest = torch.finfo(coarse).eps, torch.finfo(coarse).smallest_normal
    worst, where = 0.0, ""
    for size in sorted({*SIZES, *(min(size, MOST) for size in sizes)}):
        drawn = (torch.randn(size, generator=chance) for _ in range(num_shards))
        shards = [one.to(dtype) for one in drawn]
        right = torch.stack(shards).double()
        allowed = (num_shards + 1) * (unit * right.abs().sum(0) + smallest)
        for hosts in possible_hosts(strategy, num_shards):
            found = reduction_of(strategy, hosts)([shard.clone() for shard in shards])
            share = float(((found.double() - right.sum(0)).abs() / allowed).max())
            if not share <= worst:
                worst, where = share, f"{num_shards} shards of {size} elements"
                where += f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    if not worst <= 1:
        detail = f"{where}: {worst:.3g} times what rounding explains"
        return Rung(
            None, None, None, CheckVerdict.BREACH, f"the reference is no sum: {detail}"
        )
    detail = f"at most {worst:.2g} of what rounding may do"
    return Rung(None, None, None, CheckVerdict.WITHIN, detail)


def possible_hosts(strategy: type[Strategy], num_shards: int) -> list[Hosts]:
    """Return some of the ways in which ranks may lie on hosts: on one, on two and on
    three of unequal size, and each on its own; one way where none makes a difference.
    """
    ranks = range(num_shards)
    counts = {1, 2, 3, num_shards} if strategy.guarantees.adds_in == "hosts" else {1}
    return [
        [[*ranks[first::count]] for first in range(count)]
        for count in sorted(counts)
        if count <= num_shards
    ]
