"""torchrun's c10d rendezvous, in the store that the hosts of a run have already."""

from typing import Any

from minitrain.distributed.gathering import Gathering

NAME = "minitrain"
_gathering: list[Gathering] = []


def rendezvous_of(gathering: Gathering) -> list[str]:
    """The options with which torchrun brings together what it starts on all hosts of
    ``gathering``, the first host's ranks first. Each call is another attempt.

    Raises UserError where a host has left.
    """
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    attempt = gathering.begin_attempt()
    _gathering[:] = [gathering]
    rendezvous_handler_registry.register(NAME, _handler)
    hosts = gathering.hosts
    limit = int(gathering.timeout_s)
    return [
        f"--nnodes={hosts.count}",
        f"--rdzv-backend={NAME}",
        f"--rdzv-endpoint={hosts.endpoint}",
        f"--rdzv-id=attempt-{attempt}",
        f"--rdzv-conf=join_timeout={limit},close_timeout={limit}",
        # torchrun numbers hosts in the order of these, as text
        f"--local-addr={gathering.everyone[0].number:05}",
    ]


def _handler(params: Any) -> Any:
    """Made by torchrun. Its own c10d would listen on every interface."""
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
        C10dRendezvousBackend,
    )
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    class Backend(C10dRendezvousBackend):
        # torchrun asks for the one that it was told
        name = NAME

    store = _gathering[0].store
    return create_handler(store, Backend(store, params.run_id), params)
