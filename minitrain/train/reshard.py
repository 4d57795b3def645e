"""Checkpoints of another number of ranks, dealt anew: who computes which shard now.

Under a strategy with logical shards the bits stay those of any number of processes.
Elsewhere a rank goes on with what the ranks had in common, and other numbers of samples
are added up together from then on: other bits.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minitrain.comm.together import only_first
from minitrain.comm.tree import shards_of
from minitrain.core.errors import UserError
from minitrain.train.checkpoint import (
    Checkpoints,
    Kept,
    load_rank,
    newest_whole,
    read_manifest,
)
from minitrain.train.config import RunConfig
from minitrain.train.identity import OF_THE_RANKS, difference
from minitrain.train.step_record import ledger_sum

Seen = dict[str, Any]


@dataclass(frozen=True)
class FromElsewhere(Checkpoints):
    """Checkpoints of a run that begins with the newest one in the folder ``source`` of
    another run, which differs in its ranks alone.
    """

    source: Path = field(kw_only=True)
    config: RunConfig = field(kw_only=True)

    def begin(self) -> bool:
        if not super().begin():
            raise UserError(
                f"--resume {self.source}: must be seen by all hosts, as on a shared "
                "file system"
            )
        return True

    def newest(self) -> Path | None:
        """Return its own, or else that of the source; UserError where that has none."""
        return super().newest() or only_first(self._newest_there)

    def _newest_there(self) -> Path:
        if self.config.sync.holds_a_part:
            raise UserError(
                f"--resume {self.source}: with this train.sync a rank keeps a part "
                "that is of no use to another number of ranks"
            )
        found = newest_whole(self.source, self._require_same_run)
        if found is None:
            raise UserError(
                f"--resume {self.source}: holds no checkpoint (a folder step-N)"
            )
        return found

    def _require_same_run(self, identity: dict[str, Any]) -> bool:
        other = difference(identity, self.identity, but=OF_THE_RANKS)
        theirs, ours = identity["run"], self.identity["run"]
        if theirs.rpartition("-")[0] != ours.rpartition("-")[0]:
            other = f"run = {theirs}, here {ours}"
        if other:
            raise UserError(f"--resume {self.source}: another run's: {other}")
        if identity["world_size"] == self.identity["world_size"]:
            raise UserError(
                f"--resume {self.source}: of as many ranks as this run, which goes on "
                "from its own checkpoints without --resume"
            )
        return True

    def load(self, checkpoint: Path) -> Kept:
        """What falls to this rank of what all of them kept."""
        if checkpoint.parent == self.folder:
            return super().load(checkpoint)
        there = read_manifest(checkpoint)["identity"]["world_size"]
        kept = [load_rank(checkpoint, rank) for rank in range(there)]
        rank, world_size = dist.get_rank(), dist.get_world_size()
        mine = [*range(rank, len(kept), world_size)]
        if self.same_bits:
            mine = shards_of(rank, world_size, self.config.num_shards(world_size))
        return deal(kept, mine, rank)


def deal(kept: Sequence[Kept], mine: Sequence[int], rank: int) -> Kept:
    """Return what ``rank`` would keep if it computed the shards ``mine``, of what all
    ranks ``kept``.
    """
    like = kept[rank % len(kept)]
    # a rank with one shard, its own, has no stream but its process's generators
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
    # what a rank with the shards would have seen, but for times, which are not its own
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
    return {**seen, "timings": []}
