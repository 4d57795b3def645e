"""Rendezvous of one torchrun that is alone, as that of each host is: in memory.

Torch's own serves TCP on every interface, or polls a file, for ever where a full disk
cut its last record.
"""

from typing import Any

from minitrain.comm.torch_private import HashStore

NAME = "minitrain"


def rendezvous_options(attempt: str) -> list[str]:
    """Options with which torchrun starts ranks without other torchruns."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(NAME, _handler)
    return ["--nnodes=1", f"--rdzv-backend={NAME}", f"--rdzv-id={attempt}"]


def _handler(params: Any) -> Any:
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class Alone(RendezvousHandler):
        def next_rendezvous(self) -> RendezvousInfo:
            # ranks meet elsewhere: minitrain.comm.store
            return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("", 0))

        def get_backend(self) -> str:
            return NAME

        def get_run_id(self) -> str:
            return str(params.run_id)

        def num_nodes_waiting(self) -> int:
            return 0

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def shutdown(self) -> bool:
            return True

    return Alone()
