"""torchrun's rendezvous where it is known before who comes, and with which number."""

from typing import Any, NamedTuple

from minitrain.comm.torch_private import HashStore, Store

NAME = "minitrain"


class Agents(NamedTuple):
    """The torchruns of an attempt, one on each of ``num_hosts``: this one's number, and
    the store that all share; ``attempt`` names it.
    """

    store: Store
    number: int
    num_hosts: int
    attempt: str


# torchrun makes the rendezvous itself, from options that are words
_next: list[Agents] = []


def alone() -> Agents:
    """One host: there is nobody to share a store with."""
    return Agents(HashStore(), 0, 1, "attempt-1")


def rendezvous_of(agents: Agents) -> list[str]:
    """The options with which torchrun starts the ranks of these ``agents``, those of
    the first host first.
    """
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    _next[:] = [agents]
    rendezvous_handler_registry.register(NAME, _handler)
    return [
        f"--nnodes={agents.num_hosts}",
        f"--rdzv-backend={NAME}",
        f"--rdzv-id={agents.attempt}",
    ]


def _handler(params: Any) -> Any:
    """Made by torchrun. Its own c10d would listen on every interface, ask the store all
    the time whether more hosts came, and compare the clocks of hosts.
    """
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class Static(RendezvousHandler):
        def next_rendezvous(self) -> RendezvousInfo:
            store, number, count, _ = _next[0]
            # ranks meet elsewhere: minitrain.comm.store
            nowhere = RendezvousStoreInfo("", 0)
            return RendezvousInfo(store, number, count, nowhere)

        def get_backend(self) -> str:
            return NAME

        def get_run_id(self) -> str:
            return str(params.run_id)

        def num_nodes_waiting(self) -> int:
            return 0

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            """Nobody could come late."""

        def shutdown(self) -> bool:
            return True

    return Static()
