"""Environment variables that tell ranks where they meet and what they talk over."""

import os
from pathlib import Path

from minitrain.comm.store import (
    INTERFACES,
    MEET_AT,
    STORE,
    loopback_interface,
    require_interfaces,
)
from minitrain.core.signals import LAUNCHER_PID
from minitrain.harness.hosts import Hosts


def one_host(folder: Path) -> dict[str, str]:
    """The environment of ranks that this process starts: they meet in ``folder``. gloo
    listens on loopback, unless GLOO_SOCKET_IFNAME asks for another interface. Raises
    UserError where there is no loopback, or not that interface.
    """
    require_interfaces()
    interface = os.environ.get(INTERFACES) or loopback_interface()
    return {**_ours(folder), INTERFACES: interface}


def several_hosts(folder: Path, hosts: Hosts) -> dict[str, str]:
    """The same for ranks that meet those of other ``hosts``: in the hosts' store, and
    over the interface that was chosen. ``folder`` is for the ranks of this host alone.
    """
    return {
        **_ours(folder),
        MEET_AT: f"{hosts.port} {hosts.address}",
        INTERFACES: hosts.interface.name,
        # not every interface whose name begins so
        "NCCL_SOCKET_IFNAME": f"={hosts.interface.name}",
    }


def _ours(folder: Path) -> dict[str, str]:
    return {STORE: str(folder / "ranks"), LAUNCHER_PID: str(os.getpid())}
