"""The store where the hosts of a run meet: the first serves it, the others find it.

It is served on one address, that of ``--rdzv-endpoint``: torch's own server listens on
every interface unless it is handed a socket. Nobody who reaches that address is asked
who they are.
"""

import socket
import threading
import time
from contextlib import closing, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue

import torch.distributed as dist

from minitrain.comm.interfaces import family_of
from minitrain.comm.store import store_at
from minitrain.comm.torch_private import Store, TCPStore
from minitrain.core.errors import UserError
from minitrain.core.printable import note
from minitrain.harness.hosts import Hosts

POLL_S = 0.2


def serve(hosts: Hosts, timeout_s: float) -> Store:
    """The store, from now on; UserError where the address cannot be listened on."""
    place = hosts.address, hosts.port
    try:
        door = socket.create_server(place, family=family_of(hosts.address), backlog=128)
    except OSError as error:
        raise UserError(
            f"--rdzv-endpoint: {hosts.endpoint}: {error.strerror}; where several hosts "
            "of a run share an address, --node-rank tells them apart"
        ) from None
    note(f"waiting at {hosts.endpoint} for {hosts.count - 1} more")
    return TCPStore(
        *place,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        # the store closes it
        master_listen_fd=door.detach(),
    )


def find(hosts: Hosts, timeout_s: float) -> Store:
    """The store of the first host, as soon as it is there.

    Raises UserError where nobody answers within ``timeout_s``, or somebody else.
    """
    note(f"waiting for the first host, at {hosts.endpoint}")
    deadline = time.monotonic() + timeout_s
    _until_open(hosts, deadline, timeout_s)
    left_s = max(1.0, deadline - time.monotonic())
    found: SimpleQueue[Store | None] = SimpleQueue()

    def connect() -> None:
        try:
            limit = timedelta(seconds=timeout_s)
            found.put(store_at(hosts.address, hosts.port, limit))
        except dist.DistError:
            found.put(None)

    # torch waits without a limit for who accepts, and then says nothing
    threading.Thread(target=connect, name="find the store", daemon=True).start()
    store = None
    with suppress(Empty):
        store = found.get(timeout=left_s)
    if store is None:
        raise no_run(hosts)
    return store


def no_run(hosts: Hosts) -> UserError:
    """That somebody answers, and not as the first host does."""
    return UserError(
        f"--rdzv-endpoint: {hosts.endpoint}: what answers there is no run of "
        "minitrain, or one that has just ended"
    )


def _until_open(hosts: Hosts, deadline: float, timeout_s: float) -> None:
    """Torch would print a warning each time that nobody listens yet."""
    while True:
        left = deadline - time.monotonic()
        try:
            place = hosts.address, hosts.port
            with closing(socket.create_connection(place, max(0.1, left))):
                return
        except OSError as error:
            if left < POLL_S:
                raise UserError(
                    f"--rdzv-endpoint: {hosts.endpoint}: no answer within "
                    f"{timeout_s:g} s ({error.strerror or error}): the first host does "
                    "not listen there, or a firewall is between"
                ) from None
        time.sleep(POLL_S)
