"""Multi-host options: number of hosts, rendezvous endpoint, network interface.

Names are the same as in torchrun: ``--nnodes``, ``--rdzv-endpoint``, ``--node-rank``.
"""

import argparse
import re
import socket
from dataclasses import dataclass
from typing import NamedTuple

from minitrain.core.errors import UserError

# torchrun's own default
DEFAULT_PORT = 29400
ENDPOINT = re.compile(r"(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d{1,5}))?")


class Interface(NamedTuple):
    """Network interface and one of its addresses. For the interface of the ranks it is
    the first, IPv4 before IPv6: the address that gloo selects for this ``name``.
    """

    name: str
    address: str


@dataclass(frozen=True)
class Hosts:
    """Rendezvous options of ``count`` hosts; ``address``:``port`` is on the first host.

    ``interface`` and ``number`` are this host's. If ``number`` is None, hosts are
    numbered in the order of arrival, and the host with ``address`` is the first.
    """

    count: int
    address: str
    port: int
    interface: Interface
    number: int | None = None

    @property
    def is_first(self) -> bool:
        """True if this host serves the rendezvous and gets the results."""
        if self.number is not None:
            return self.number == 0
        return any(one.address == self.address for one in own_interfaces())

    @property
    def endpoint(self) -> str:
        """Endpoint in the format of the option, HOST:PORT."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def ranks_here(self, world_size: int) -> int:
        """Return the number of ranks per host; UserError if it is not an integer."""
        if world_size % self.count:
            raise UserError(
                f"--world-size = {world_size}: must be a multiple of --nnodes = "
                f"{self.count}"
            )
        return world_size // self.count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options for several hosts to ``parser``."""
    several = parser.add_argument_group("several hosts (docs/several-hosts.md)")
    several.add_argument("--nnodes", type=int, metavar="N", help="number of hosts")
    several.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help=f"address of the first host for the rendezvous (port {DEFAULT_PORT})",
    )
    several.add_argument(
        "--node-rank",
        type=int,
        metavar="N",
        help="number of this host; default: the host with the address is the first",
    )
    several.add_argument(
        "--interface",
        metavar="NAME",
        help="network interface of the ranks; default: the route to the first host",
    )


def hosts_of(arguments: argparse.Namespace) -> Hosts | None:
    """Return the options in ``arguments`` for several hosts; None for a single host.
    Raises UserError for options that are inconsistent or do not match this host.
    """
    count, endpoint = arguments.nnodes, arguments.rdzv_endpoint
    number, name = arguments.node_rank, arguments.interface
    if count is None and (endpoint, number, name) != (None, None, None):
        raise UserError("--nnodes: is missing, and the other options need it")
    # 1 is passed by a batch script on a single node
    if count in (None, 1):
        return None
    if count < 1:
        raise UserError(f"--nnodes = {count}: must be at least 1")
    if endpoint is None:
        raise UserError("--rdzv-endpoint: is missing, an address of the first host")
    if number is not None and not 0 <= number < count:
        raise UserError(f"--node-rank = {number}: must be from 0 to {count - 1}")
    address, port = _where(endpoint)
    interface = interface_named(name) if name else interface_towards(address)
    return Hosts(count, address, port, interface, number)


def _where(endpoint: str) -> tuple[str, int]:
    found = ENDPOINT.fullmatch(endpoint)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if not found or not 1 <= port <= 65535:
        raise UserError(
            f"--rdzv-endpoint = {endpoint!r}: must be HOST:PORT, with a port from 1 to "
            "65535"
        )
    host = found["v6"] or found["host"]
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--rdzv-endpoint: {host!r}: {error}") from None
    # prefer IPv4: gloo uses the first address of an interface
    first = min(addresses, key=lambda one: one[0] != socket.AF_INET)
    return str(first[4][0]), port


def own_interfaces() -> list[Interface]:
    """Return every address of this host with its interface, in gloo's order."""
    import psutil

    return [
        Interface(name, one.address.partition("%")[0])
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]


def interface_named(name: str) -> Interface:
    """Return interface ``name``; raises UserError if it has no address or is down."""
    import psutil

    up = {one for one, state in psutil.net_if_stats().items() if state.isup}
    known = {one.name: one for one in reversed(own_interfaces()) if one.name in up}
    if name not in known:
        raise UserError(
            f"--interface = {name!r}: must be one of {', '.join(sorted(known))}, which "
            "are up and have an address"
        )
    return known[name]


def interface_towards(address: str) -> Interface:
    """Return the interface of the route to ``address``; UserError if there is none."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        try:
            # connecting a UDP socket sends nothing, but selects the route
            probe.connect((address, 9))
        except OSError as error:
            raise UserError(
                f"network: no route to {address}: {error.strerror}; choose an "
                "interface with --interface"
            ) from None
        own = probe.getsockname()[0]
    name = next(one.name for one in own_interfaces() if one.address == own)
    return interface_named(name)


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of an IP address, AF_INET or AF_INET6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
