"""Rendezvous store of the ranks, and a check that settings are equal on all.

Ranks of one host that our launcher starts use a file in a folder that is private to the
user, and communicate over loopback: torch's TCP store listens on every interface
without authentication, and a client could run code in the ranks. Ranks that the user's
own torchrun starts use torchrun's store, at MASTER_ADDR.
"""

import itertools
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from minitrain.comm.torch_private import (
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)
from minitrain.core.errors import UserError
from minitrain.core.signals import LAUNCHER_PID

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# set by our launchers: path of the file
STORE = "MINITRAIN_STORE"
# port and address of the hosts' store, if there are several hosts
MEET_AT = "MINITRAIN_MEET_AT"
# number of this host, and of all
HOSTS = "MINITRAIN_HOSTS"
# set by torchrun
RUN_ID = "TORCHELASTIC_RUN_ID"
# interfaces of gloo, separated by commas
INTERFACES = "GLOO_SOCKET_IFNAME"
_joined = itertools.count()


def our_store() -> Path | None:
    """Return the path of the rendezvous file if a launcher of minitrain started this
    process as a rank; None in any other process, such as a child of a rank.
    """
    if os.environ.get(LAUNCHER_PID) != str(os.getppid()) or STORE not in os.environ:
        return None
    return Path(os.environ[STORE])


def names_of_a_rank() -> tuple[str, ...]:
    """Return the names of the environment variables that a rank needs to join."""
    return ENVIRONMENT if our_store() is None else ("RANK", "WORLD_SIZE")


def meet(timeout: timedelta) -> tuple[Store, int, int]:
    """Connect to a store that all ranks share; return store, rank and world size.

    Each call opens a new store or key prefix, so that a second process group does not
    read keys of the first. ``timeout`` limits each wait. Raises UserError if
    MASTER_PORT is in use.
    """
    number, file = next(_joined), our_store()
    store: Store
    if file is None:
        try:
            store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error):
                raise
            raise UserError(
                f"environment: MASTER_PORT = {os.environ['MASTER_PORT']} is in use; "
                "unset it or choose a free port from 1 to 65535"
            ) from None
        return PrefixStore(f"minitrain {number}", store), rank, world_size
    if MEET_AT in os.environ:
        port, _, address = os.environ[MEET_AT].partition(" ")
        store = TCPStore(address, int(port), wait_for_workers=False, timeout=timeout)
        # each attempt of the hosts has another id
        store = PrefixStore(f"ranks {os.environ[RUN_ID]}-{number}", store)
    else:
        store = FileStore(f"{file}-{number}", int(os.environ["WORLD_SIZE"]))
        store.set_timeout(timeout)
    return store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def require_same(
    store: Store, rank: int, world_size: int, facts: Mapping[str, Any]
) -> None:
    """Raise UserError on all ranks unless ``facts`` (plain values by name) are equal on
    all ranks. The message names the first different fact and the hosts. Collective.
    """
    store.set(f"facts {rank}", json.dumps([socket.gethostname(), dict(facts)]))
    keys = [f"facts {other}" for other in range(world_size)]
    store.wait(keys)
    line = _difference([json.loads(store.get(key)) for key in keys])
    if line:
        raise UserError(line)


def _difference(everyone: list[tuple[str, dict[str, Any]]]) -> str:
    (host, first), *others = everyone
    for rank, (there, facts) in enumerate(others, 1):
        name, ours, theirs = differing_fact(first, facts)
        if name:
            return (
                f"host {there} (rank {rank}): {name} = {theirs}, but {ours} on host "
                f"{host} (rank 0): hosts of a run must have the same code, data, "
                "parameters and torch"
            )
    return ""


def differing_fact(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], *, but: Sequence[str] = ()
) -> tuple[str, str, str]:
    """Return the first name, not in ``but``, whose values differ, and both values as
    text, shortened if long; three empty strings if all are equal.
    """
    for name in {**ours, **theirs}:
        values = ours.get(name), theirs.get(name)
        if name not in but and values[0] != values[1]:
            # the first characters of a hash are enough
            one, other = (
                t if len(t) < 64 else f"{t[:16]}..." for t in map(repr, values)
            )
            return name, one, other
    return "", "", ""


def interfaces() -> str:
    """Return the names of gloo's network interfaces, separated by commas: the value of
    GLOO_SOCKET_IFNAME, or by default the loopback interface.

    Raises UserError for an unknown interface.
    """
    known = [name for _, name in socket.if_nameindex()]
    if named := os.environ.get(INTERFACES):
        for name in filter(None, named.split(",")):
            if name not in known:
                raise UserError(
                    f"environment: {INTERFACES} = {name!r}: must be one of "
                    f"{', '.join(known)}"
                )
        return named
    return next((name for name in known if name.startswith("lo")), "lo")


@contextmanager
def variables(changes: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set environment variables in the body, and then restore them."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
