"""Resume on a different world size: redistribute shards over ranks.

With logical shards the bits stay the same. With other strategies ranks resume from
their common state, but then each rank adds up the gradients of other samples than
before, so the bits change.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minitrain.comm.collective_calls import everyone, only_first
from minitrain.comm.tree import shards_of
from minitrain.core.errors import UserError
from minitrain.train.checkpoint import (
    Checkpoints,
    Kept,
    Manifest,
    load_rank,
    newest_whole,
    read_manifest,
    step_of,
)
from minitrain.train.config import RunConfig
from minitrain.train.identity import OF_THE_RANKS, difference
from minitrain.train.step_record import ledger_sum

Seen = dict[str, Any]


def begin_with(own: Checkpoints, source: Path, config: RunConfig) -> None:
    """Convert the newest checkpoint of another run, in the folder ``source``, to one of
    this run, unless this run has one. The runs may differ only in their number of
    ranks. The folder of ``own`` checkpoints is locked until rank 0 exits. Collective.

    Raises:
        UserError: ``source`` is not usable, or not all hosts see both folders.
        OSError: A file cannot be read or written.
    """
    shared = own.begin()
    if shared and own.newest() is not None:
        return
    try:
        found, kept = _kept_there(own, source, config, shared)
    except (OSError, UserError):
        own.remove_empty()
        raise
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = [*range(rank, len(kept), world_size)]
    if own.same_bits:
        mine = shards_of(rank, world_size, config.num_shards(world_size))
    own.save(step_of(found), deal(kept, mine, rank))


def _kept_there(
    own: Checkpoints, source: Path, config: RunConfig, shared: bool
) -> tuple[Path, list[Kept]]:
    # the newest checkpoint of the other run, and the state of each of its ranks
    found = only_first(lambda: _newest_there(own.identity, source, config))
    first, *others = everyone(lambda: _manifest_of(found))
    if not shared or any(other != first for other in others):
        raise UserError(
            f"--resume {source}: all hosts must see it and {own.folder}, as on a "
            "shared file system"
        )
    ranks = range(first["identity"]["world_size"])
    try:
        return found, [load_rank(found, rank) for rank in ranks]
    except OSError:
        raise
    except Exception as error:
        # torch has many kinds of errors for it
        why = f"torch cannot load it ({type(error).__name__})"
        raise UserError(f"--resume {found}: {why}") from None


def _manifest_of(found: Path) -> Manifest:
    # empty if this host does not see it
    with suppress(UserError):
        return read_manifest(found)
    return {}


def _newest_there(ours: Mapping[str, Any], source: Path, config: RunConfig) -> Path:
    if config.sync.holds_a_part:
        raise UserError(
            f"--resume {source}: with this train.sync a rank keeps a part that is of "
            "no use to another number of ranks"
        )

    def is_same_run(theirs: Mapping[str, Any]) -> bool:
        there, here = (
            {**one, "backend": one["run"].rpartition("-")[0]} for one in (theirs, ours)
        )
        if other := difference(there, here, but=OF_THE_RANKS):
            raise UserError(f"--resume {source}: another run's: {other}")
        if theirs["world_size"] == ours["world_size"]:
            raise UserError(
                f"--resume {source}: of as many ranks as this run, which goes on from "
                "its own checkpoints without --resume"
            )
        return True

    found = newest_whole(source, is_same_run)
    if found is None:
        raise UserError(f"--resume {source}: holds no checkpoint (a folder step-N)")
    return found


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


def _deal_seen(everyone: list[Seen], mine: Sequence[int], rank: int) -> Seen:
    # observations of a rank with these shards, without times and usage of other ranks
    seen = everyone[rank % len(everyone)]
    fed = [[r for r in one["rows"] if r["kind"] == "fed"] for one in everyone]
    for step, row in enumerate(fed[rank % len(everyone)]):
        parts = [
            (part, loss, [*islice(digests, len(part["samples"]))])
            for one, rows in zip(everyone, fed, strict=True)
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
    return {**seen, "timings": [], "used": [0.0, 0.0, 0.0, 0.0, 0]}
