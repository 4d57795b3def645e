"""Resume of an interrupted run: bit-exact, or on a different world size.

Before a run continues from a checkpoint, it repeats the run's first steps. That
restores the order of DDP's buckets, which cannot be saved and affects the bits with
three or more ranks. It also checks that this machine computes the same bits in these
steps: the checkpoint holds hashes of their results.

On a different world size, shards are redistributed over ranks. With logical shards the
bits stay the same. With other strategies ranks resume from their common state, but then
each rank adds up the gradients of other samples than before, so the bits change.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minitrain.comm.collective_calls import everyone, only_first
from minitrain.comm.groups import is_main_process
from minitrain.comm.tree import shards_of
from minitrain.core.errors import UserError
from minitrain.core.printable import print_note
from minitrain.core.progress import progress
from minitrain.train.checkpoint import Checkpoints, Kept, load_rank, step_of, whole_in
from minitrain.train.config import RunConfig
from minitrain.train.identity import OF_THE_RANKS, difference
from minitrain.train.step_record import ledger_sum
from minitrain.train.worker import REPEATED, Worker

Seen = dict[str, Any]
OTHER_BITS = (
    "from here on not the bits of an undisturbed run: with other numbers of ranks each "
    "adds up the gradients of other samples (train.sync: invariant keeps the bits)"
)
NOT_SHARED = (
    "no checkpoints: not every host sees the folder of rank 0; a run that is "
    "interrupted starts again"
)
NOT_USED = (
    "cannot be loaded, or does not have the bits of the first steps, which were "
    "repeated; the run starts again"
)


def run_through(
    worker: Worker,
    steps: int,
    checkpoints: Checkpoints | None = None,
    *,
    show: str = "",
) -> int:
    """Train ``worker``, which has made no step, for ``steps`` steps in all, from the
    newest checkpoint on, if any. ``show``: name of a progress bar; empty for none.
    Return the step of the checkpoint that the run continued from, else 0. Collective.
    Raises UserError or OSError if a checkpoint cannot be written, or another process
    trains this run.
    """
    if checkpoints is not None and not checkpoints.begin():
        _say(show, NOT_SHARED)
        checkpoints = None
    done = went_on_from = 0
    if checkpoints is not None:
        done, went_on_from = _resume(worker, checkpoints, steps, show)
    left = range(done, steps)
    for step in progress(left, show, total=steps, show=bool(show), initial=done):
        worker.train([step])
        after = step + 1
        # not after the last step: its results are written right after it
        if checkpoints is not None and after % checkpoints.every == 0 and after < steps:
            checkpoints.save(after, worker.kept())
    return went_on_from


def _resume(
    worker: Worker, checkpoints: Checkpoints, steps: int, show: str
) -> tuple[int, int]:
    # returns the number of steps done, and the step of the checkpoint, else 0
    found = checkpoints.newest()
    if found is None:
        return 0, 0
    step = step_of(found)
    repeated = min(REPEATED, step)
    worker.train(range(repeated))
    own, kept = worker.kept(), Kept()

    def is_ours() -> bool:
        try:
            kept.update(load_rank(found))
            rows, before = (json.loads(one["seen"])["rows"] for one in (own, kept))
        except OSError:
            raise
        except Exception:
            # torch has many kinds of errors, such as for an object of a user's strategy
            return False
        return not checkpoints.same_bits or rows == before[: len(rows)]

    if not all(everyone(is_ours)):
        _say(show, f"checkpoint not used: {found}: {NOT_USED}")
        return repeated, 0
    if not checkpoints.same_bits:
        _say(show, OTHER_BITS)
    worker.restore(kept)
    _say(show, f"going on from step {step} of {steps}")
    return step, step


def _say(show: str, line: str) -> None:
    if is_main_process():
        print_note(f"{show}: {line}" if show else line)


def begin_with(own: Checkpoints, source: Path, config: RunConfig) -> None:
    """Convert the newest checkpoint of another run, in the folder ``source``, to one of
    this run, unless this run has one. The runs may differ only in their number of
    ranks. Collective. Raises UserError or OSError if ``source`` is not usable, or not
    all hosts see both folders.
    """
    if not own.begin():
        raise UserError(
            f"--resume {source}: all hosts must see {own.folder}, as on a shared file "
            "system"
        )
    if own.newest() is not None:
        return
    kept: list[Kept] = []
    try:
        found, ranks = only_first(lambda: _newest_there(own.identity, source, config))
        # raises on all ranks if a host does not see the other run's folder
        everyone(lambda: kept.extend(load_rank(found, r) for r in range(ranks)))
    except (OSError, UserError):
        # leave no empty folder behind
        own.forget()
        raise
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = [*range(rank, len(kept), world_size)]
    if own.same_bits:
        mine = shards_of(rank, world_size, config.num_shards(world_size))
    own.save(step_of(found), deal(kept, mine, rank))


def _newest_there(
    ours: Mapping[str, Any], source: Path, config: RunConfig
) -> tuple[Path, int]:
    # the newest checkpoint of the other run, and its number of ranks
    if config.sync.holds_a_part:
        raise UserError(
            f"--resume {source}: with this train.sync a rank keeps a part that is of "
            "no use to another number of ranks"
        )
    for found, theirs in whole_in(source):
        if other := difference(theirs, ours, but=OF_THE_RANKS):
            raise UserError(f"--resume {source}: another run's: {other}")
        return found, theirs["world_size"]
    raise UserError(f"--resume {source}: holds no checkpoint (a folder step-N)")


def deal(kept: Sequence[Kept], mine: Sequence[int], rank: int) -> Kept:
    """Return the checkpoint state of ``rank``, which has the data shards ``mine``, at
    the new world size. ``kept``: state of each rank at the old world size.
    """
    like = kept[rank % len(kept)]
    # a rank with one shard uses the generators of its process instead of a stream
    streams = {
        shard: stream
        for own, one in enumerate(kept)
        for shard, stream in (one["streams"] or {own: one["random"]}).items()
    }
    found = {shard: streams[shard] for shard in mine if shard in streams}
    seen = [json.loads(one["seen"]) for one in kept]
    return {
        **like,
        "random": found.get(mine[0]) if mine else None,
        "streams": found,
        "seen": json.dumps(_deal_seen(seen, mine, rank)),
    }


def _deal_seen(ranks: list[Seen], mine: Sequence[int], rank: int) -> Seen:
    # observations of a rank with these shards, without times of other ranks
    seen = ranks[rank % len(ranks)]
    fed = [[r for r in one["rows"] if r["kind"] == "fed"] for one in ranks]
    for step, row in enumerate(fed[rank % len(ranks)]):
        parts = [
            (part, loss, [*islice(digests, len(part["samples"]))])
            for one, rows in zip(ranks, fed, strict=True)
            for digests in [iter(one["digests"][step])]
            for part, loss in zip(rows[step]["parts"], one["losses"][step], strict=True)
        ]
        chosen = [part for shard in mine for part in parts if part[0]["shard"] == shard]
        seen["losses"][step] = [loss for _, loss, _ in chosen]
        seen["digests"][step] = [d for *_, digests in chosen for d in digests]
        row["parts"] = [part for part, *_ in chosen]
        row["ledger"] = ledger_sum(seen["digests"][step])[:16]
        known = (rows[step]["global_targets"] for rows in fed)
        row["global_targets"] = next(filter(None, known)) if chosen else None
    return {**seen, "timings": []}
