"""Consistency check: ranks compare what they are about to compute before they begin.

A difference between two hosts would otherwise show late, as other bits, or never.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from minitrain.comm.torch_private import Store
from minitrain.core.errors import UserError

# rank 0 may serve the store: it stays until the others have read all facts
READ_S = 5.0


def require_same(
    store: Store, rank: int, world_size: int, facts: Mapping[str, Any]
) -> None:
    """Raise UserError on all ranks unless all bring the same ``facts`` (plain values):
    the line names the first that differs, and the host. Collective.
    """
    store.set(f"facts {rank}", json.dumps([socket.gethostname(), dict(facts)]))
    keys = [f"facts {other}" for other in range(world_size)]
    store.wait(keys)
    line = _difference([json.loads(store.get(key)) for key in keys])
    store.set(f"read {rank}", "")
    if not line:
        return
    if rank == 0:
        keys = [f"read {other}" for other in range(world_size)]
        with suppress(dist.DistError):
            store.wait(keys, timedelta(seconds=READ_S))
    raise UserError(line)


def _difference(everyone: list[tuple[str, dict[str, Any]]]) -> str:
    (host, first), *others = everyone
    for rank, (there, facts) in enumerate(others, 1):
        for name in {**first, **facts}:
            if facts.get(name) != first.get(name):
                return (
                    f"host {there} (rank {rank}): {name} = {_short(facts.get(name))}, "
                    f"but {_short(first.get(name))} on host {host} (rank 0): hosts of "
                    "a run must have the same code, data, parameters and torch"
                )
    return ""


def _short(value: Any) -> str:
    # the first characters of a hash are enough
    text = repr(value)
    return text if len(text) < 64 else f"{text[:16]}..."
