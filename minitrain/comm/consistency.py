"""Before ranks begin, they see that they are about to compute the same.

What differs between two hosts would else show late, as other bits, or never.
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

SAME = "same"
# rank 0 may serve the store: it stays until the others have read what it found
READ_S = 5.0


def require_same(
    store: Store, rank: int, world_size: int, facts: Mapping[str, Any]
) -> None:
    """Raise UserError on all ranks unless all bring the same ``facts`` (plain values):
    the line names the first that differs, and the host. Collective.
    """
    told = json.dumps([socket.gethostname(), dict(facts)])
    store.set(f"facts {rank}", told)
    if rank == 0:
        keys = [f"facts {other}" for other in range(world_size)]
        store.wait(keys)
        store.set("difference", _difference([store.get(key) for key in keys]))
    line = store.get("difference").decode()
    store.set(f"read {rank}", "")
    if line == SAME:
        return
    if rank == 0:
        keys = [f"read {other}" for other in range(world_size)]
        with suppress(dist.DistError):
            store.wait(keys, timedelta(seconds=READ_S))
    raise UserError(line)


def _difference(everyone: list[bytes]) -> str:
    (host, first), *others = map(json.loads, everyone)
    for rank, (there, facts) in enumerate(others, 1):
        for name in {**first, **facts}:
            if facts.get(name) != first.get(name):
                return (
                    f"host {there} (rank {rank}): {name} = {_short(facts.get(name))}, "
                    f"but {_short(first.get(name))} on host {host} (rank 0): hosts of "
                    "a run must have the same code, data, parameters and torch"
                )
    return SAME


def _short(value: Any) -> str:
    # of a hash the start tells enough
    text = repr(value)
    return text if len(text) < 64 else f"{text[:16]}..."
