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
    """Return the environment of ranks that this process starts and that meet in
    ``folder``; gloo uses loopback unless GLOO_SOCKET_IFNAME names an interface.

    Raises:
        UserError: that interface, or a loopback interface, does not exist.
    """
    require_interfaces()
    interface = os.environ.get(INTERFACES) or loopback_interface()
    return {**_ours(folder), INTERFACES: interface}


def several_hosts(folder: Path, hosts: Hosts) -> dict[str, str]:
    """Return the environment of ranks that meet the ranks of other ``hosts`` in their
    store, over the chosen interface; ``folder`` is shared by the ranks of this host.
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
